"""What others add: a backend, a calibration, a training method."""
