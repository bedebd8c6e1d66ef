"""Videos of a record as vLLM takes them: every frame, with its time."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from clef_vllm.media import read_videos

FRAME = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def test_every_frame_is_kept_in_order() -> None:
    frames = [FRAME + n for n in range(16)]
    (array, about), (images, _) = read_videos({"videos": [np.stack(frames), [Image.fromarray(f) for f in frames]]})
    assert array.shape == (16, 4, 6, 3)
    np.testing.assert_array_equal(array, images)
    assert (about["frames_indices"], about["total_num_frames"]) == (list(range(16)), 16)
    assert (about["fps"], about["duration"], about["do_sample_frames"]) == (24.0, 16 / 24, False)


def test_frame_rates_come_from_the_metadata() -> None:
    record = {"videos": [[FRAME] * 4], "media_kwargs": {"video_metadata": [{"fps": 2}]}}
    assert read_videos(record)[0][1]["duration"] == 2.0
    with pytest.raises(ValueError, match="1 videos with 2 entries of video_metadata"):
        read_videos({**record, "media_kwargs": {"video_metadata": [{}, {}]}})


@pytest.mark.parametrize("video", [[], [FRAME, FRAME[:2]], [FRAME[..., :1]], [FRAME.astype(float)], [FRAME[..., 0]]])
def test_odd_frames_are_refused(video: Any) -> None:
    with pytest.raises(ValueError, match="video 1: frames must be RGB images of one size"):
        read_videos({"videos": [[FRAME], video]})


def test_records_without_videos() -> None:
    assert read_videos({}) == read_videos({"videos": None, "media_kwargs": None}) == []
