"""Parts of the server without HTTP: images on the wire, limits, flags, keys."""

import base64
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nano import make_image
from PIL import Image

from clef_vllm.requests import Encoder, RequestError
from clef_vllm.server import flags
from clef_vllm.server.cli import main, read_keys
from clef_vllm.server.images import ImageDecoder
from clef_vllm.server.limits import ServerLimits
from clef_vllm.server.warmup import warm_up_records

decode = ImageDecoder().decode


def encode(image: Any, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return base64.b64encode(buffer.getvalue()).decode()


def test_images_in_every_accepted_form_are_the_same() -> None:
    image = make_image(1, 40, 30)
    png = encode(image, "PNG")
    for value in (f"data:image/png;base64,{png}", f"DATA:IMAGE/PNG;base64,{png}",
                  {"content_type": "image/png", "base64": png},
                  f"data:image/webp;base64,{encode(image, 'WEBP', lossless=True)}"):  # fmt: skip
        decoded = decode("image 0", value)
        assert (decoded.mode, decoded.size, decoded.tobytes()) == ("RGB", (40, 30), image.tobytes())


def rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: the reference ignores it as well
    return exif


@pytest.mark.parametrize(
    ("image", "kind", "options"),
    [
        (make_image(1, 40, 30).convert("CMYK"), "JPEG", {}), (make_image(1, 40, 30).convert("P"), "PNG", {}),
        (make_image(1, 40, 30).convert("RGBA"), "PNG", {}), (make_image(1, 40, 30).convert("LA"), "PNG", {}),
        (make_image(1, 40, 30).convert("P"), "PNG", {"transparency": 3}), (make_image(1, 1, 1), "PNG", {}),
        (Image.new("I;16", (40, 30), 40000), "PNG", {}), (make_image(1, 40, 30).convert("1"), "PNG", {}),
        (make_image(1, 40, 30), "JPEG", {"exif": rotated()}), (make_image(1, 40, 30), "JPEG", {"exif": b"Exif\0\0xx"}),
    ],
)  # fmt: skip
def test_every_mode_becomes_rgb_as_pillow_converts_it(image: Any, kind: str, options: Any) -> None:
    text = encode(image, kind, **options)
    expected = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")
    decoded = decode("image 0", {"content_type": f"image/{kind.lower()}", "base64": text})
    assert (decoded.mode, decoded.size, decoded.tobytes()) == ("RGB", expected.size, expected.tobytes())


def test_refused_images() -> None:
    image = make_image(1, 40, 30)
    png, bomb = encode(image, "PNG"), encode(Image.new("1", (5000, 4000)), "PNG")
    for value, words in (
        ("https://example.com/a.png", "remote addresses are not fetched"), (7, "expected a data URL"),
        ("file:///etc/passwd", "expected a data URL"), ({"content_type": "image/png"}, "expected a data URL"),
        (f"data:image/gif;base64,{encode(image, 'GIF')}", "content type 'image/gif'"),
        (f"data:image/tiff;base64,{encode(image, 'TIFF')}", "content type 'image/tiff'"),
        ("data:image/svg+xml;base64,PHN2Zy8+", r"content type 'image/svg\+xml'"),
        (f"data:image/png;base64,{encode(image, 'GIF')}", "cannot be decoded as image/png"),
        ("data:image/png;base64,@@@", "not valid base64"), ("data:image/png;base64,AAAA", "cannot be decoded"),
        (f"data:image/png;base64,{png[:200]}", "cannot be decoded"),
        (f"data:image/jpeg;base64,{png}", "cannot be decoded as image/jpeg"),
        (f"data:image/png;base64,{bomb}", "5000 x 4000 pixels"), ("data:image/png;base64," + "A" * 6_000_000, "larger"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=f"image 3: .*{words}"):
            decode("image 3", value)


def test_videos_are_frames() -> None:
    """Every frame is used, and what is in a body besides a record's own fields does not reach the encoder."""
    frames = [make_image(n, 40, 30) for n in range(16)]
    urls = [f"data:image/png;base64,{encode(frame, 'PNG')}" for frame in frames]
    body = {"model": "m", "state": 1, "questions": {}, "media_kwargs": 5, "videos": [{"frames": urls, "fps": 2}]}
    record = ImageDecoder().media(body)
    assert [frame.tobytes() for frame in record["videos"][0]] == [frame.tobytes() for frame in frames]
    assert record["media_kwargs"] == {"video_metadata": [{"fps": 2.0}]}
    for video, words in (("data:video/mp4;base64,AA", "video 0: expected an object with 1 to 64 frames"),
                         ({"frames": []}, "1 to 64 frames"), ({"frames": [*urls] * 5}, "1 to 64 frames"),
                         ({"frames": urls, "fps": 0}, "fps must be a number above 0"),
                         ({"frames": [*urls, "x"]}, "video 0, frame 16: expected a data URL")):  # fmt: skip
        with pytest.raises(RequestError, match=words):
            ImageDecoder().media({**body, "videos": [video]})


def test_a_bomb_is_refused_before_its_pixels_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFile

    loaded: list[Any] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: loaded.append(image))
    with pytest.raises(RequestError, match="5000 x 4000 pixels"):
        decode("image 0", "data:image/png;base64," + encode(Image.new("1", (5000, 4000)), "PNG"))
    assert not loaded


def test_limits_are_the_hosted_ones_and_each_can_be_changed() -> None:
    assert ServerLimits.parse("") == ServerLimits()
    changed = ServerLimits.parse("questions=none,options=300,images=0,image_mib=1,image_mpx=2,body_mib=3,batch=9")
    assert (changed.record.questions, changed.record.options, changed.record.levels, changed.record.images) == (
        None, 300, 10, 0)  # fmt: skip
    assert ServerLimits.parse("videos=2,frames=16").record.videos == 2
    assert (changed.image_bytes, changed.image_pixels, changed.body_bytes, changed.batch) == (
        2**20, 2_000_000, 3 * 2**20, 9)  # fmt: skip
    for text, words in (("colour=1", "'colour' is not one of questions"), ("batch=none", "batch takes a whole number"),
                        ("levels=-1", "or none, got '-1'"), ("levels", "got ''"), ("batch=0", "above 0")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            ServerLimits.parse(text)


@pytest.mark.parametrize("max_length", [1024, 2048, 16384])
def test_warm_up_fits_every_length_of_prompt(nano: Path, max_length: int) -> None:
    encoder, decoder = Encoder(nano, max_length), ImageDecoder()
    lengths = [len(encoder.encode(decoder.media(record)).token_ids) for record in warm_up_records(0, max_length)]
    assert max(lengths) == max_length


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team a\nfirst\n\n second \n")
    assert read_keys(file) == ["first", "second"]
    file.write_bytes(b"\xef\xbb\xbffirst\r\nsecond\r\n")
    assert read_keys(file) == ["first", "second"]
    file.write_text("# none\n")
    with pytest.raises(ValueError, match="holds no key"):
        read_keys(file)


def test_wrong_usage_ends_with_2(nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--model", str(tmp_path / "nowhere")], "is not a folder"),
        (["--model", str(nano), "--limits", "x=1"], "'x' is not one of"),
        (["--model", str(nano), "--api-key-file", str(tmp_path / "none")], "No such file"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


def test_a_missing_package_ends_with_3(nano: Path) -> None:
    """vLLM is looked for once the port is open, uvicorn before."""
    pytest.importorskip("uvicorn")
    for package in ("vllm", "uvicorn"):
        code = f"import sys; sys.modules[{package!r}] = None; from clef_vllm.server.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "--model", str(nano), "--port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 3, done.stderr
        assert re.search(rf"^clef-systemone: .*{package}.*; install", done.stderr, re.MULTILINE)


@pytest.mark.engine
def test_flags_that_are_not_ours_are_vllms() -> None:
    pytest.importorskip("vllm")
    assert flags.vllm_flags([]) == {}
    given = flags.vllm_flags(["--max-num-seqs", "7", "--distributed-executor-backend", "ray", "--nnodes", "2"])
    assert given == {"max_num_seqs": 7, "distributed_executor_backend": "ray", "nnodes": 2}
    for arguments, words in ((["--no-such-flag"], "neither clef-systemone nor vLLM's engine"),
                             (["--hf-overrides", "{}"], "--hf-overrides of vLLM cannot be changed")):  # fmt: skip
        with pytest.raises(flags.UsageError, match=words):
            flags.vllm_flags(arguments)


@pytest.mark.engine
def test_flags_become_engine_arguments(nano: Path) -> None:
    pytest.importorskip("vllm")
    from clef_vllm.release import Release
    from clef_vllm.server.backend import engine_arguments

    release = Release.open(nano)

    def arguments(**given: Any) -> dict[str, Any]:
        return engine_arguments(release, flags.EngineFlags(str(nano), **given))

    plain = arguments()
    assert (plain["max_model_len"], plain["runner"]) == (16384, "pooling")
    assert "enable_flashinfer_autotune" not in plain
    ranks = arguments(tp=2, dp=3, kv_cache_gib=1.5, gdn_backend="triton", images=0, vllm=["--max-num-seqs", "7"])
    assert (ranks["tensor_parallel_size"], ranks["data_parallel_size"], ranks["max_num_seqs"]) == (2, 3, 7)
    assert (ranks["kv_cache_memory_bytes"], ranks["gdn_prefill_backend"]) == (3 * 2**29, "triton")
    assert ranks["language_model_only"] is True
    assert ranks["enable_flashinfer_autotune"] is False
    assert arguments(tp=2, flashinfer_autotune="on")["enable_flashinfer_autotune"] is True
    assert arguments(flashinfer_autotune="off")["enable_flashinfer_autotune"] is False
