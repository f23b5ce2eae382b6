"""What the text of an answer is made of: content, reasoning and tool calls, told apart as the text arrives."""
