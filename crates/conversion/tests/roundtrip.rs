//! Every scheme in every layout that holds it: converted, opened again, compared bit for bit.

use conversion::{Job, Layout, Settings, Source, Target, convert, verify};
use progress::Silent;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemes::{FloatType, Overflow, Scheme};
use std::path::Path;
use store::output::Existing;

mod common;
use common::{SyntheticModel, write_model, write_model_with};

fn check(
    model: &Path,
    scheme: Scheme,
    target: Target,
    layout: Option<Layout>,
    out: &Path,
) -> Result<(), conversion::Error> {
    let model = store::open(model)?;
    let source = Source::new(&model)?;
    let mut settings = Settings::new(target);
    settings.layout = layout;
    settings.calibration = Some(common::fake_calibration(&source));
    let job = Job { scheme, settings, destination: out.to_path_buf(), existing: Existing::Overwrite };
    let made = convert(&source, std::slice::from_ref(&job), &Silent)?;
    verify::verify(out, &source, &made[0].plan, &job.settings, &Silent)?;
    let reopened = store::open(out)?;
    assert_eq!(reopened.metadata.get("qconvert.scheme").map(String::as_str), Some(scheme.to_string().as_str()));
    assert_ne!(reopened.metadata.get("qconvert.source_blake3").map(String::as_str), Some(&*"0".repeat(64)));
    assert!(reopened.config()?.layers == 2 && reopened.tokenizer().is_ok());
    Ok(())
}

#[test]
fn every_scheme_round_trips_in_its_default_and_packed_layouts() {
    let dir = tempfile::tempdir().expect("temp dir");
    for (float, name) in [(FloatType::F16, "f16"), (FloatType::BF16, "bf16")] {
        let model = dir.path().join(name);
        write_model(&model, &SyntheticModel { float, ..SyntheticModel::default() });
        let mut schemes = Scheme::all();
        schemes.extend(
            ["f16", "bf16", "f32", "ggml-q8_0", "ggml-q4_0", "int4-g64", "int8-g32"]
                .map(|s| s.parse::<Scheme>().expect("known")),
        );
        for scheme in schemes {
            for (target, layout) in [
                (Target::Gguf, None),
                (Target::Gguf, Some(Layout::Packed)),
                (Target::Safetensors, None),
                (Target::Safetensors, Some(Layout::Packed)),
            ] {
                let floats = matches!(scheme, Scheme::Float(_));
                let ggml = matches!(scheme, Scheme::Ggml(_));
                if (ggml && (target == Target::Safetensors || layout.is_some())) || (floats && layout.is_some()) {
                    continue;
                }
                let out = dir.path().join(format!(
                    "{name}-{scheme}-{target:?}-{}{}",
                    layout.is_some(),
                    if target == Target::Gguf { ".gguf" } else { "" }
                ));
                match check(&model, scheme, target, layout, &out) {
                    Ok(()) => {}
                    // 192 columns are not whole groups of 128: compressed-tensors refuses, by name.
                    Err(conversion::Error::Misfits(m))
                        if target == Target::Safetensors
                            && layout.is_none()
                            && scheme.to_string().ends_with("g128") =>
                    {
                        assert!(m[0].why.contains("128") && m[0].instead.contains("packed"), "{m:?}");
                        assert!(!out.exists());
                    }
                    Err(e) => panic!("{name} {scheme} {target:?} {layout:?}: {e}"),
                }
            }
        }
        for scheme in ["nf4", "nf4-dq", "int8-row"] {
            let out = dir.path().join(format!("{name}-bnb-{scheme}"));
            check(&model, scheme.parse().expect("known"), Target::Safetensors, Some(Layout::Bitsandbytes), &out)
                .unwrap_or_else(|e| panic!("{scheme}: {e}"));
        }
    }
}

#[test]
fn large_gguf_models_are_split_and_read_as_one() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (model, whole, parts) =
        (dir.path().join("model"), dir.path().join("whole.gguf"), dir.path().join("parts.gguf"));
    write_model(&model, &SyntheticModel::default());
    let opened = store::open(&model).expect("opens");
    let source = Source::new(&opened).expect("whole");
    let scheme: Scheme = "int8-row".parse().expect("known");
    for (destination, max_shard) in [(&whole, None), (&parts, Some(200_000))] {
        let mut settings = Settings::new(Target::Gguf);
        (settings.max_shard, settings.verify) = (max_shard, true);
        // Twice: a folder of parts that is there is replaced.
        for _ in 0..2 {
            let job = Job {
                scheme,
                settings: settings.clone(),
                destination: destination.clone(),
                existing: Existing::Overwrite,
            };
            convert(&source, std::slice::from_ref(&job), &Silent).expect("converts");
        }
    }
    let mut names: Vec<String> = std::fs::read_dir(&parts)
        .expect("a folder")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let count = names.len();
    assert!(count > 2);
    assert_eq!(names[0], format!("parts-00001-of-{count:05}.gguf"));
    let sizes = names.iter().map(|n| std::fs::metadata(parts.join(n)).expect("there").len());
    assert!(sizes.max().expect("files") < 400_000, "the tokenizer is beside the tensors of the first");
    let (a, b) = (store::open(&whole).expect("opens"), store::open(&parts.join(&names[0])).expect("opens"));
    assert_eq!((a.tensors.len(), &a.config_json), (b.tensors.len(), &b.config_json));
    for (name, tensor) in &a.tensors {
        assert_eq!(
            (&*tensor.data, tensor.dtype, tensor.order),
            (&*b.tensors[name].data, b.tensors[name].dtype, b.tensors[name].order),
            "{name}"
        );
    }
}

#[test]
fn emulated_weights_are_what_the_scheme_decodes_to() {
    let dir = tempfile::tempdir().expect("temp dir");
    let model = dir.path().join("model");
    write_model(&model, &SyntheticModel::default());
    let opened = store::open(&model).expect("opens");
    let source = Source::new(&opened).expect("whole");
    for (scheme, target) in [
        ("int4-g64", Target::Gguf),
        ("nf4-dq", Target::Safetensors),
        ("int8-outlier", Target::Gguf),
        ("ggml-q4_0", Target::Safetensors),
        ("int8-absmax", Target::Safetensors),
    ] {
        let scheme: Scheme = scheme.parse().expect("known");
        let make = |emulate, name: &str| {
            let coded = if matches!(scheme, Scheme::Ggml(_)) { Target::Gguf } else { target };
            let mut settings = Settings::new(if emulate { target } else { coded });
            settings.emulate = emulate.then_some(FloatType::F32);
            settings.calibration = Some(common::fake_calibration(&source));
            settings.verify = true;
            let destination = dir.path().join(format!("{scheme}-{name}"));
            let job = Job { scheme, settings, destination: destination.clone(), existing: Default::default() };
            convert(&source, std::slice::from_ref(&job), &Silent).unwrap_or_else(|e| panic!("{scheme} {name}: {e}"));
            store::open(&destination).expect("opens")
        };
        let (plain, emulated) = (make(false, "coded.gguf"), make(true, "emulated"));
        assert_eq!(emulated.metadata["qconvert.emulated"], "f32");
        for module in ["self_attn.q_proj", "mlp.down_proj"].map(|m| format!("model.layers.1.{m}")) {
            let [a, b] = [&plain, &emulated].map(|m| m.linear(&module).expect("a layer").matrix);
            assert!(matches!(b.storage(), schemes::Storage::Float(FloatType::F32, _)), "{scheme}");
            assert!(a.decode_all() == b.decode_all(), "{scheme} {module}");
            assert_eq!(emulated.declared_schemes()[&module], scheme.to_string());
        }
    }
}

#[test]
fn same_input_same_bytes() {
    let dir = tempfile::tempdir().expect("temp dir");
    let model = dir.path().join("model");
    write_model(&model, &SyntheticModel::default());
    let bytes = |scheme: &str, n: usize| {
        let out = dir.path().join(format!("{scheme}-{n}.gguf"));
        check(&model, scheme.parse().expect("known"), Target::Gguf, None, &out).expect("converts");
        std::fs::read(out).expect("reads")
    };
    for scheme in ["int4-g32", "nf4-dq", "int8-outlier"] {
        assert_eq!(bytes(scheme, 1), bytes(scheme, 2), "{scheme}");
    }
}

#[test]
fn gguf_and_back_is_exact() {
    let dir = tempfile::tempdir().expect("temp dir");
    for float in [FloatType::F16, FloatType::BF16] {
        let (model, gguf, back) = (
            dir.path().join(format!("{float}")),
            dir.path().join(format!("{float}.gguf")),
            dir.path().join(format!("{float}-back")),
        );
        write_model(&model, &SyntheticModel { float, ..SyntheticModel::default() });
        let scheme = Scheme::Float(float);
        check(&model, scheme, Target::Gguf, None, &gguf).expect("to GGUF");
        check(&gguf, scheme, Target::Safetensors, None, &back).expect("and back");
        let (a, b) = (store::open(&model).expect("opens"), store::open(&back).expect("opens"));
        assert_eq!(a.tensors.len(), b.tensors.len());
        for (name, tensor) in &a.tensors {
            assert_eq!((&*tensor.data, tensor.dtype), (&*b.tensors[name].data, b.tensors[name].dtype), "{name}");
        }
        let same = |file: &str| {
            std::fs::read(model.join(file)).expect("there") == std::fs::read(back.join(file)).expect("carried")
        };
        // The synthetic model's config.json, on one line, says float16: that of BF16 is put right.
        assert_eq!((same("tokenizer.json"), same("config.json")), (true, float == FloatType::F16));
    }
}

#[test]
fn biases_of_q_and_k_are_permuted_with_their_rows() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (model, gguf, back) = (dir.path().join("hf"), dir.path().join("x.gguf"), dir.path().join("back"));
    write_model(&model, &SyntheticModel { attention_bias: true, ..SyntheticModel::default() });
    check(&model, Scheme::Float(FloatType::F16), Target::Gguf, None, &gguf).expect("to GGUF");
    check(&gguf, Scheme::Float(FloatType::F16), Target::Safetensors, None, &back).expect("and back");
    let [hf, gguf, back] = [&model, &gguf, &back].map(|p| store::open(p).expect("opens"));
    for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        let name = format!("model.layers.1.self_attn.{part}.bias");
        let want = hf.dense(&name).expect("floats").expect("there");
        assert_eq!(gguf.dense(&name).expect("floats").as_ref(), Some(&want), "{part}");
        assert_eq!(back.dense(&name).expect("floats").as_ref(), Some(&want), "{part}");
        // As llama.cpp's converter does: of each head, value i and i + head_dim / 2 side by side.
        let stored: Vec<f32> =
            gguf.tensors[&name].data.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let expected = if matches!(part, "q_proj" | "k_proj") {
            [want[0], want[16], want[1]]
        } else {
            [want[0], want[1], want[2]]
        };
        assert_eq!(stored[..3], expected, "{part}");
    }
}

#[test]
fn scales_that_f16_cannot_carry_move_to_f32() {
    let dir = tempfile::tempdir().expect("temp dir");
    let model = dir.path().join("model");
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let tiny = move |name: &str, i: usize| {
        if name.contains("layers.1.mlp.up_proj") && i < 192 {
            1e-30 * rng.random_range(0.5..1.0)
        } else {
            0.01 * ((i * 7919 % 101) as f32 - 50.0)
        }
    };
    common::write_model_with(&model, &SyntheticModel { float: FloatType::F32, ..SyntheticModel::default() }, tiny);
    let scheme: Scheme = "int8-row".parse().expect("known");
    let out = dir.path().join("packed");
    check(&model, scheme, Target::Safetensors, Some(Layout::Packed), &out).expect("converts");
    let made = store::open(&out).expect("opens");
    let scale_type = |layer: usize| made.tensors[&format!("model.layers.{layer}.mlp.up_proj.weight.scales")].dtype;
    assert_eq!((scale_type(0), scale_type(1)), (store::DType::F16, store::DType::F32));
    let e = check(&model, scheme, Target::Gguf, Some(Layout::Ggml), &dir.path().join("x.gguf"))
        .expect_err("blocks have f16 scales");
    assert!(e.to_string().contains("model.layers.1.mlp.up_proj.weight") && !dir.path().join("x.gguf").exists(), "{e}");
}

#[test]
fn one_bad_weight_is_named_and_nothing_appears() {
    let dir = tempfile::tempdir().expect("temp dir");
    let model = dir.path().join("model");
    let bad = |name: &str, i: usize| {
        if name.contains("layers.1.self_attn.v_proj") && i == 192 * 3 + 5 { f32::NAN } else { 0.5 }
    };
    common::write_model_with(&model, &SyntheticModel::default(), bad);
    for scheme in ["int8-row", "int4-absmax", "nf4", "nf4-dq", "int4-g64"] {
        let out = dir.path().join("out");
        let e = check(&model, scheme.parse().expect("known"), Target::Safetensors, Some(Layout::Packed), &out)
            .expect_err("NaN");
        let text = e.to_string();
        assert!(
            text.contains("model.layers.1.self_attn.v_proj.weight") && text.contains("row 3, column 5"),
            "{scheme}: {text}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 1, "only the model is there");
    }
}

#[test]
fn each_artifact_has_its_own_overflow() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("model");
    let shape = SyntheticModel { float: FloatType::BF16, ..SyntheticModel::default() };
    let value = |name: &str, i: usize| if name.ends_with("up_proj.weight") && i == 3 { 1e6 } else { 0.25 };
    write_model_with(&model, &shape, value);
    let opened = store::open(&model).expect("opens");
    let source = Source::new(&opened).expect("whole");
    let job = |scheme: &str, overflow, name: &str| {
        let settings = Settings { overflow, ..Settings::new(Target::Safetensors) };
        Job {
            scheme: scheme.parse().expect("known"),
            settings,
            destination: dir.path().join(name),
            existing: Default::default(),
        }
    };
    let convert = |jobs: &[Job]| conversion::convert(&source, jobs, &progress::Silent);
    // bf16 holds the value, f16 doesn't; the order of the artifacts says nothing.
    for clamped_first in [false, true] {
        let mut jobs = vec![job("bf16", Overflow::Error, "a"), job("f16", Overflow::Clamp, "b")];
        if clamped_first {
            jobs.reverse();
        }
        let made = convert(&jobs).expect("clamps where it is asked to");
        let clamped = |name: &str| -> u64 {
            let m = made.iter().find(|m| m.path.ends_with(name)).expect("made");
            m.losses.clamped.values().sum()
        };
        assert_eq!((clamped("a"), clamped("b")), (0, 2));
        let mut jobs = vec![job("bf16", Overflow::Clamp, "c"), job("f16", Overflow::Error, "d")];
        if clamped_first {
            jobs.reverse();
        }
        let e = convert(&jobs).expect_err("1e6 is no f16").to_string();
        assert!(e.contains("up_proj.weight") && e.contains("overflows f16"), "{e}");
        assert!(!dir.path().join("c").exists() && !dir.path().join("d").exists());
        for made in ["a", "b"] {
            std::fs::remove_dir_all(dir.path().join(made)).expect("removed");
        }
    }
}
