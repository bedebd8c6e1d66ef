"""The calibration pass, weight quantization and the checkpoint writer."""
