use super::*;
use serde_json::json;

/// The roles of a model's weights, each given as a name without `.weight` and a shape.
fn roles(config: &Value, weights: &[(&str, &[usize])]) -> Vec<Role> {
    let names: Vec<String> = weights
        .iter()
        .map(
            |(name, shape)| {
                if shape.len() == 2 && !name.contains("A_log") { format!("{name}.weight") } else { name.to_string() }
            },
        )
        .collect();
    let stored: Vec<Stored<'_>> = names.iter().zip(weights).map(|(name, (_, shape))| Stored { name, shape }).collect();
    let roles = Roles::new(&stored, Some(config));
    stored.iter().map(|t| roles.role(t.name, t.shape)).collect()
}

/// A `[64, 64]` weight's role in a model that holds nothing else.
fn alone(name: &str) -> Role {
    roles(&json!({}), &[(name, &[64, 48])])[0]
}

#[test]
fn projections_of_text_blocks_in_all_families() {
    for name in [
        "model.layers.0.self_attn.q_proj",
        "model.layers.11.mlp.down_proj",
        "layers.0.self_attn.o_proj",
        "model.language_model.layers.0.self_attn.k_proj",
        "language_model.model.layers.0.mlp.gate_proj",
        "thinker.model.layers.0.mlp.up_proj",
        "model.layers.0.self_attn.qkv_proj",
        "model.layers.0.mlp.gate_up_proj",
        "model.layers.3.self_attn.kv_a_proj_with_mqa",
        "model.layers.3.self_attn.q_b_proj",
        "model.layers.3.mlp.shared_experts.gate_proj",
        "model.layers.3.mlp.shared_expert.up_proj",
        "model.layers.3.mlp.shared_mlp.down_proj",
        "model.layers.0.shared_mlp.input_linear",
        "gpt_neox.layers.0.attention.query_key_value",
        "gpt_neox.layers.0.attention.dense",
        "gpt_neox.layers.0.mlp.dense_4h_to_h",
        "transformer.h.0.self_attention.dense",
        "transformer.h.0.attn.c_attn",
        "transformer.h.0.attn.c_proj",
        "transformer.h.0.mlp.w1",
        "transformer.h.0.attn.attention.out_proj",
        "transformer.blocks.0.attn.Wqkv",
        "transformer.blocks.0.ffn.up_proj",
        "model.decoder.layers.0.self_attn.out_proj",
        "model.decoder.layers.0.encoder_attn.v_proj",
        "model.decoder.layers.0.fc1",
        "decoder.block.0.layer.1.EncDecAttention.q",
        "encoder.block.0.layer.0.SelfAttention.o",
        "decoder.block.0.layer.2.DenseReluDense.wi_1",
        "bert.encoder.layer.0.attention.self.query",
        "bert.encoder.layer.0.attention.output.dense",
        "bert.encoder.layer.0.intermediate.dense",
        "bert.encoder.layer.0.output.dense",
        "distilbert.transformer.layer.0.attention.q_lin",
        "distilbert.transformer.layer.0.ffn.lin2",
        "model.layers.0.attn.Wo",
        "model.layers.0.feed_forward.w2",
        "model.layers.0.attention.wqkv",
        "model.layers.0.self_attn.W_pack",
        "backbone.layers.2.mixer.q_proj",
        "backbone.layers.4.mixer.up_proj",
        "model.layers.2.temporal_block.q_proj",
        "model.layers.2.mlp_block.down_proj",
        "model.layers.0.cross_attn.q_proj",
        "blk.0.attn_q",
        "blk.0.ffn_down",
        "blk.0.ffn_up_shexp",
    ] {
        assert_eq!(alone(name), Role::Projection, "{name}");
    }
    for name in [
        "model.layers.0.mlp.experts.3.gate_proj",
        "model.layers.0.block_sparse_moe.experts.0.w2",
        "model.layers.0.feed_forward.experts.7.w1",
    ] {
        assert_eq!(alone(name), Role::Expert, "{name}");
    }
}

#[test]
fn what_is_no_projection_stays_float() {
    use Role::{Embedding, Head, Mixer, Other, Router, Tower};
    for (name, role) in [
        ("lm_head", Head),
        ("language_model.lm_head", Head),
        ("embed_out", Head),
        ("score", Head),
        ("classifier", Head),
        ("classifier.out_proj", Head),
        ("qa_outputs", Head),
        ("cls.predictions.decoder", Head),
        ("model.embed_tokens", Embedding),
        ("transformer.wte", Embedding),
        ("model.decoder.embed_positions", Embedding),
        ("bert.embeddings.word_embeddings", Embedding),
        ("shared", Embedding),
        ("decoder.block.0.layer.0.SelfAttention.relative_attention_bias", Embedding),
        ("electra.embeddings_project", Other),
        ("albert.encoder.embedding_hidden_mapping_in", Other),
        ("model.decoder.project_in", Other),
        ("model.layers.0.mlp.gate", Router),
        ("model.layers.0.block_sparse_moe.gate", Router),
        ("model.layers.0.block_sparse_moe.router.layer", Router),
        ("model.layers.0.feed_forward.router", Router),
        ("model.layers.0.mlp.router", Router),
        ("model.layers.0.mlp.shared_expert_gate", Router),
        ("model.layers.0.mlp.gate.wg", Router),
        ("transformer.blocks.0.ffn.router.layer", Router),
        ("backbone.layers.1.mixer.gate", Router),
        ("blk.0.ffn_gate_inp", Router),
        ("blk.0.ffn_gate_inp_shexp", Router),
        ("model.layers.0.self_attn.gate_proj", Other),
        ("model.layers.0.self_attn.output_gate", Router),
        ("model.layers.0.input_layernorm", Other),
        ("model.layers.61.eh_proj", Other),
        ("model.layers.0.linear_attn.in_proj_qkvz", Mixer),
        ("model.layers.0.linear_attn.out_proj", Mixer),
        ("model.layers.0.mamba.in_proj", Mixer),
        ("model.layers.0.conv.out_proj", Mixer),
        ("model.layers.0.self_attn.indexer.wq_b", Mixer),
        ("blk.0.ssm_in", Mixer),
        ("visual.blocks.0.attn.qkv", Tower),
        ("visual.blocks.0.mlp.gate_proj", Tower),
        ("visual.merger.mlp.0", Tower),
        ("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj", Tower),
        ("model.vision_tower.transformer.layers.0.attention.q_proj", Tower),
        ("multi_modal_projector.linear_1", Tower),
        ("audio_tower.layers.0.fc1", Tower),
        ("model.visual.deepstack_merger_list.0.linear_fc1", Tower),
        ("mlp1.1", Tower),
        ("vit.layers.0.mlp.fc1", Tower),
        ("talker.model.layers.0.mlp.up_proj", Tower),
        ("mtp.layers.0.mlp.up_proj", Tower),
        ("resampler.layers.0.attn.q_proj", Tower),
        ("model.layers.0.something.new", Other),
    ] {
        assert_eq!(alone(name), role, "{name}");
    }
}

#[test]
fn a_gate_is_a_projection_only_where_its_neighbours_say_so() {
    let dense: [(&str, &[usize]); 3] = [
        ("model.layers.0.mlp.gate", &[96, 64]),
        ("model.layers.0.mlp.up", &[96, 64]),
        ("model.layers.0.mlp.down", &[64, 96]),
    ];
    assert_eq!(roles(&json!({}), &dense), [Role::Projection; 3]);
    let experts: [(&str, &[usize]); 2] =
        [("model.layers.0.mlp.gate", &[4, 64]), ("model.layers.0.mlp.experts.0.up_proj", &[96, 64])];
    assert_eq!(roles(&json!({"num_experts": 4}), &experts), [Role::Router, Role::Expert]);
    // Of whatever name, what has an output for each expert chooses among them.
    let named_oddly: [(&str, &[usize]); 3] = [
        ("model.layers.0.mlp.fc1", &[8, 64]),
        ("model.layers.0.mlp.fc2", &[96, 64]),
        ("model.layers.0.mlp.experts.gate_up_proj", &[8, 96, 64]),
    ];
    let found = roles(&json!({"text_config": {"n_routed_experts": 8}}), &named_oddly);
    assert_eq!(found, [Role::Router, Role::Projection, Role::FusedExperts]);
}

#[test]
fn neighbours_tell_state_space_models_and_audio_encoders() {
    let mamba: [(&str, &[usize]); 4] = [
        ("backbone.layers.0.mixer.in_proj", &[64, 48]),
        ("backbone.layers.0.mixer.out_proj", &[48, 64]),
        ("backbone.layers.0.mixer.A_log", &[64, 16]),
        ("backbone.layers.1.mixer.o_proj", &[48, 48]),
    ];
    assert_eq!(roles(&json!({}), &mamba), [Role::Mixer, Role::Mixer, Role::Mixer, Role::Projection]);
    let whisper: [(&str, &[usize]); 3] = [
        ("model.encoder.conv1.weight", &[48, 80, 3]),
        ("model.encoder.layers.0.self_attn.q_proj", &[48, 48]),
        ("model.decoder.layers.0.self_attn.q_proj", &[48, 48]),
    ];
    assert_eq!(roles(&json!({}), &whisper)[1..], [Role::Tower, Role::Projection]);
    let deit: [(&str, &[usize]); 2] = [
        ("deit.embeddings.patch_embeddings.projection.weight", &[48, 3, 16, 16]),
        ("deit.encoder.layer.0.attention.attention.query", &[48, 48]),
    ];
    assert_eq!(roles(&json!({}), &deit)[1], Role::Tower);
}

#[test]
fn conv1d_is_known_by_its_bias_or_its_shape() {
    let attn: (&str, &[usize]) = ("transformer.h.0.attn.c_attn", &[64, 192]);
    let proj: (&str, &[usize]) = ("transformer.h.0.attn.c_proj", &[64, 64]);
    assert_eq!(roles(&json!({}), &[attn, proj]), [Role::Transposed; 2]);
    let with_bias: [(&str, &[usize]); 2] =
        [("transformer.h.0.mlp.c_fc", &[64, 256]), ("transformer.h.0.mlp.c_fc.bias", &[256])];
    assert_eq!(roles(&json!({}), &with_bias)[0], Role::Transposed);
    // gpt_bigcode and Starcoder 2 have Linears of these names.
    let linear: [(&str, &[usize]); 2] =
        [("transformer.h.0.mlp.c_fc", &[256, 64]), ("transformer.h.0.mlp.c_fc.bias", &[256])];
    assert_eq!(roles(&json!({}), &linear)[0], Role::Projection);
}

#[test]
fn blocks_are_told_from_other_numbers() {
    assert_eq!(block("model.layers.3.mlp.experts.7.w1"), Some(("model", "mlp.experts.7.w1")));
    assert_eq!(block("layers.0.fc1"), Some(("", "fc1")));
    assert_eq!((block("visual.merger.mlp.0"), block("0.weight"), block("lm_head.weight")), (None, None, None));
}
