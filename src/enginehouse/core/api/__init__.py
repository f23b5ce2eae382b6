"""What APIs beside OpenAI's older two are read with: bodies by declaration, histories told in items or blocks."""
