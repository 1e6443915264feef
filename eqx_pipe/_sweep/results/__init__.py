"""What a sweep gives back: labelled, drawn, saved, printed."""
