"""What a coordinator decides. Pure: inputs in, effects out."""
