//! Transformer inference on candle with packed weights.
