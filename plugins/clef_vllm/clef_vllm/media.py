"""Images and videos of a record: how many prompt tokens they become, and the form in which vLLM takes them.

vLLM expands placeholders itself, so the encoder is given a processor that leaves them unexpanded, and a token budget
reduced by what they will add. Every frame given is used. The release's own `systemone()` thins a video without metadata
out (16 frames become 4) unless the record says `"media_kwargs": {"do_sample_frames": False}`, as is done here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FPS = 24.0  # what the release's processor assumes of a video without metadata
Video = tuple[Any, dict[str, Any]]  # frames uint8 [T, height, width, 3] and their times, as vLLM takes them


class Media:
    """Counts tokens with the release's own processor, which is loaded on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._processor: Any = None

    @property
    def processor(self) -> Any:
        if self._processor is None:
            from transformers import AutoProcessor

            self._processor = AutoProcessor.from_pretrained(self.path)
        return self._processor

    def image_tokens(self, image: Any) -> int:
        """How many prompt tokens a PIL image becomes. ValueError for a side ratio that the processor does not take."""
        images = self.processor.image_processor
        try:
            patches = images.get_number_of_image_patches(image.height, image.width, {})
        except ValueError as error:
            raise ValueError(f"an image of {image.width} x {image.height} pixels: {error}") from error
        return int(patches) // int(images.merge_size) ** 2

    def video_tokens(self, video: Video) -> int:
        """How many prompt tokens a video becomes: its frames two by two, each pair with its time."""
        frames, metadata = video
        metadata = {name: value for name, value in metadata.items() if name != "do_sample_frames"}
        encoded = self.processor(
            text=[self.processor.video_token], videos=[frames], video_metadata=[metadata], do_sample_frames=False
        )
        return len(encoded["input_ids"][0])


def read_videos(record: Mapping[str, Any]) -> list[Video]:
    """The videos of a record, each a sequence of PIL images or arrays of one size. ValueError says what is wrong.

    Frame rates come from `record["media_kwargs"]["video_metadata"][i]["fps"]`, else 24.
    """
    import numpy as np

    videos = list(record.get("videos") or [])
    given: Sequence[Any] = (record.get("media_kwargs") or {}).get("video_metadata") or [{}] * len(videos)
    if len(given) != len(videos):
        raise ValueError(f"{len(videos)} videos with {len(given)} entries of video_metadata; give one for each")
    read = []
    for number, (video, about) in enumerate(zip(videos, given, strict=True)):
        frames = [np.asarray(frame) for frame in video]
        if not frames or {(frame.dtype.name, frame.shape) for frame in frames} != {
            ("uint8", (*frames[0].shape[:2], 3))
        }:
            raise ValueError(f"video {number}: frames must be RGB images of one size, at least one")
        fps = float(about.get("fps") or FPS)
        metadata = {
            "fps": fps, "total_num_frames": len(frames), "frames_indices": list(range(len(frames))),
            "duration": len(frames) / fps, "video_backend": "frames", "do_sample_frames": False,
        }  # fmt: skip
        read.append((np.stack(frames), metadata))
    return read


class Unexpanded:
    """Stands in for the multi-modal processor: one placeholder token per image or video, no pixels."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, text: list[str], **_: Any) -> "dict[str, torch.Tensor]":
        import torch

        return {"input_ids": torch.tensor([self.tokenizer(text[0], add_special_tokens=False).input_ids])}
