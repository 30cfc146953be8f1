"""Model: an architecture, from the shapes that a catalogue states to every parameter tensor."""
