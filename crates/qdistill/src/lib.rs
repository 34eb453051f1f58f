//! Distillation: training a small student.
