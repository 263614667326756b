"""Networks written for other programs: ONNX, torch.export, AOTInductor."""
