"""int8 tables, the release folder, its card, audit and repair, publishing."""
