"""Sources of records. Each yields :class:`~clefquant.calibration.draft.Draft` in an order fixed by its options and the seed."""
