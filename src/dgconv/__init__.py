"""Dynamic group convolution: each image picks the channels it spends its budget on."""
