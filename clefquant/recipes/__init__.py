"""What to quantize and how: formats, layouts, fused groups, translation to llm-compressor."""
