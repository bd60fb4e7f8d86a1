"""What an exported file is worth: times and sizes beside PyTorch's, taken in one run."""
