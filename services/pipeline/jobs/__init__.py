"""What is made of committed events: each job is a function from a frame of events to a frame, the same for streams and tables."""
