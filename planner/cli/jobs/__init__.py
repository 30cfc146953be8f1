"""Options that describe a layout and a whole training, shared by commands about them."""
