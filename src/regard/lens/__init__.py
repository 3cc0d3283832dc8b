"""Looking at attention: pictures in files, windows and terminals."""
