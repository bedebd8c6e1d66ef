"""How the bundled nano Clef is made: from the generators and public text to the release folder. See README.md."""
