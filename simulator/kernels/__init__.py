"""How long the device takes: attention from page traffic, rooflines, collectives, the played reference."""
