"""The shapes that the whole service shares."""
