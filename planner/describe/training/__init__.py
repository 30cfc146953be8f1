"""What a training does besides its steps: the data it reads, what it saves, what interrupts it."""
