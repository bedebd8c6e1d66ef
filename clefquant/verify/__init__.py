"""How far a quantized release moved from BF16: metrics, runners, gates, report."""
