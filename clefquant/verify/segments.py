"""Questions that lie one after the other in flat arrays over options, and the softmax within each."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Segments:
    """Reductions over the options of each question. ``starts`` [Q + 1]: where each question's options begin."""

    def __init__(self, starts: IntArray) -> None:
        self.starts = starts[:-1]  # [Q]
        self.counts = np.diff(starts)  # [Q]
        self.question = np.repeat(np.arange(len(self.counts)), self.counts)  # [N]
        self.places = np.arange(starts[-1]) - self.starts[self.question]  # [N] place within the question

    @classmethod
    def of_sizes(cls, sizes: IntArray) -> "Segments":
        """From the number of options of each question [Q]."""
        return cls(np.concatenate([[0], np.cumsum(sizes)]))

    def sum(self, values: FloatArray) -> FloatArray:
        """[N] to [Q]."""
        result: FloatArray = np.add.reduceat(values, self.starts)
        return result

    def max(self, values: FloatArray) -> FloatArray:
        """[N] to [Q]."""
        result: FloatArray = np.maximum.reduceat(values, self.starts)
        return result

    def log_softmax(self, logits: FloatArray) -> FloatArray:
        """Logarithms of the probabilities [N], from logits [N]."""
        shifted = logits - self.max(logits)[self.question]
        return np.asarray(shifted - np.log(self.sum(np.exp(shifted)))[self.question])
