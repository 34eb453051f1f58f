use super::*;

fn config(layers: usize, heads: usize, kv_heads: usize, tied: bool) -> Config {
    Config {
        family: Family::Llama,
        vocab_size: 256,
        hidden_size: heads * 32,
        intermediate_size: 512,
        layers,
        heads,
        kv_heads,
        head_dim: 32,
        rms_norm_eps: 1e-5,
        rope_theta: 1e4,
        rope_scaling: store::RopeScaling::None,
        max_position: 2048,
        window: None,
        tie_word_embeddings: tied,
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    }
}

/// Matrices of a llama in no particular order, as name and row length.
fn matrices(layers: usize, hidden: usize, tied: bool) -> Vec<(String, usize)> {
    let mut out: Vec<(String, usize)> = vec![("token_embd.weight".into(), hidden)];
    if !tied {
        out.push(("output.weight".into(), hidden));
    }
    for block in (0..layers).rev() {
        for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"] {
            out.push((format!("blk.{block}.{part}.weight"), hidden));
        }
        out.push((format!("blk.{block}.ffn_down.weight"), 512));
    }
    out
}

fn types(mix: &str, config: &Config, matrices: &[(String, usize)]) -> Vec<(String, MixedType)> {
    let mix = Mix::from_name(mix).expect("a mixture");
    let found = mix.types(config, matrices.iter().map(|(name, cols)| (name.as_str(), *cols)));
    matrices.iter().map(|m| m.0.clone()).zip(found).collect()
}

fn of<'a>(found: &'a [(String, MixedType)], name: &str) -> &'a MixedType {
    &found.iter().find(|(n, _)| n == name).expect("listed").1
}

#[test]
fn q4_k_m_gives_more_bits_to_the_ends_and_every_third_block() {
    let config = config(16, 8, 2, false);
    let found = types("Q4_K_M", &config, &matrices(16, 256, false));
    // 16 blocks: the first and last two, and of those between every third from the fifth on.
    let more = [0, 1, 4, 7, 10, 13, 14, 15];
    for block in 0..16 {
        let expected = MixedType::Ggml(if more.contains(&block) { GgmlType::Q6_K } else { GgmlType::Q4_K });
        for part in ["attn_v", "ffn_down"] {
            assert_eq!(of(&found, &format!("blk.{block}.{part}.weight")), &expected, "{part} {block}");
        }
        assert_eq!(of(&found, &format!("blk.{block}.attn_q.weight")), &MixedType::Ggml(GgmlType::Q4_K));
    }
    assert_eq!(of(&found, "output.weight"), &MixedType::Ggml(GgmlType::Q6_K));
    assert_eq!(of(&found, "token_embd.weight"), &MixedType::Ggml(GgmlType::Q4_K));
    let tied = types("q4_k_m", &config, &matrices(16, 256, true));
    assert_eq!(of(&tied, "token_embd.weight"), &MixedType::Ggml(GgmlType::Q6_K));
}

#[test]
fn other_mixtures_follow_their_rules() {
    let ungrouped = config(16, 8, 8, false);
    let grouped = config(16, 8, 2, false);
    let all = matrices(16, 256, false);
    for (mix, config, name, expected) in [
        ("q4_k_s", &grouped, "blk.3.attn_v.weight", GgmlType::Q5_K),
        ("q4_k_s", &grouped, "blk.4.attn_v.weight", GgmlType::Q4_K),
        ("q4_k_s", &grouped, "blk.1.ffn_down.weight", GgmlType::Q5_K),
        ("q4_k_s", &grouped, "blk.2.ffn_down.weight", GgmlType::Q4_K),
        ("q3_k_m", &grouped, "blk.1.attn_v.weight", GgmlType::Q5_K),
        ("q3_k_m", &grouped, "blk.2.attn_v.weight", GgmlType::Q4_K),
        ("q3_k_m", &grouped, "blk.0.ffn_down.weight", GgmlType::Q5_K),
        ("q3_k_m", &grouped, "blk.9.attn_output.weight", GgmlType::Q4_K),
        ("q3_k_m", &grouped, "blk.9.attn_k.weight", GgmlType::Q3_K),
        ("q3_k_l", &grouped, "blk.9.attn_output.weight", GgmlType::Q5_K),
        ("q5_k_m", &grouped, "blk.15.ffn_down.weight", GgmlType::Q6_K),
        ("q5_k_s", &grouped, "blk.15.ffn_down.weight", GgmlType::Q5_K),
        ("q2_k", &grouped, "blk.5.attn_v.weight", GgmlType::Q4_K),
        ("q2_k", &ungrouped, "blk.5.attn_v.weight", GgmlType::Q3_K),
        ("q4_0", &grouped, "output.weight", GgmlType::Q6_K),
        ("q8_0", &grouped, "output.weight", GgmlType::Q8_0),
        ("q8_0", &grouped, "token_embd.weight", GgmlType::Q8_0),
        ("iq4_xs", &grouped, "blk.9.attn_v.weight", GgmlType::Q5_K),
    ] {
        assert_eq!(of(&types(mix, config, &all), name), &MixedType::Ggml(expected), "{mix} {name}");
    }
    let large = types("q4_k_m", &config(80, 64, 8, false), &matrices(80, 2048, false));
    assert_eq!(of(&large, "blk.20.attn_v.weight"), &MixedType::Ggml(GgmlType::Q5_K));
}

#[test]
fn rows_that_are_no_whole_blocks_get_another_type() {
    let config = config(8, 18, 6, true);
    let found = types("q4_k_m", &config, &matrices(8, 576, true));
    let instead = |wanted, instead| MixedType::Instead { wanted, instead };
    assert_eq!(of(&found, "blk.4.attn_q.weight"), &instead(GgmlType::Q4_K, GgmlType::Q5_0));
    assert_eq!(of(&found, "blk.0.attn_v.weight"), &instead(GgmlType::Q6_K, GgmlType::Q8_0));
    // The output's rule sees to it by itself.
    assert_eq!(of(&found, "token_embd.weight"), &MixedType::Ggml(GgmlType::Q8_0));
    assert_eq!(of(&found, "blk.0.ffn_down.weight"), &MixedType::Ggml(GgmlType::Q6_K));
    let odd = types("q4_k_m", &config, &[("blk.0.attn_q.weight".into(), 40)]);
    assert_eq!(odd[0].1.scheme(), Some(Scheme::Float(FloatType::F16)));
}

#[test]
fn names_are_those_of_llama_cpp() {
    for name in Mix::names() {
        let choice: Choice = name.to_uppercase().parse().expect("known");
        assert_eq!((choice.to_string().as_str(), choice.mix.map(|mix| mix.base())), (name, Some(choice.scheme)));
    }
    assert_eq!("ggml-q4_k".parse::<Choice>().expect("a scheme").mix, None);
    let e = "q4_k_x".parse::<Choice>().expect_err("unknown").to_string();
    assert!(e.starts_with("unknown scheme 'q4_k_x'") && e.contains("mixtures q2_k, q3_k_s,"), "{e}");
}
