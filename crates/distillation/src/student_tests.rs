//! Students of the fixture, opened again by the runtime.

use super::*;
use crate::labels::{Kind, Plan, Settings};
use crate::testing;
use runtime::Transformer;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");
const TOKENS: [u32; 9] = [0, 17, 300, 42, 1279, 5, 5, 900, 256];

fn build(spec: &Spec, teacher: &store::Model, frozen: bool, seed: u64) -> Result<Student> {
    super::build(spec, teacher, frozen, seed, &Device::Cpu)
}

fn fixture() -> store::Model {
    store::open(Path::new(FIXTURE)).expect("the fixture")
}

fn logits(model: &store::Model) -> Vec<f32> {
    let model = Transformer::load(model, &runtime::cpu()).expect("it runs");
    let hidden = model.hidden(&[&TOKENS], None).expect("hidden states");
    testing::flat(&model.logits(&hidden).expect("logits"))
}

fn assert_close(ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len());
    let size = theirs.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = ours.iter().zip(theirs).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    assert!(worst <= tolerance * size, "logits differ by {worst} of {size}");
}

/// Writes a student and compares what the runtime makes of it with what was trained.
fn round_trip(teacher: &store::Model, student: &Student) -> store::Model {
    let folder = tempfile::tempdir().expect("a folder");
    let output =
        Output::of_student(testing::work(folder.path()), teacher, student, FloatType::F32).expect("a configuration");
    output.save(student).expect("saved");
    let written = store::open(folder.path()).expect("it opens");
    let trained = testing::flat(&student.logits(&TOKENS, TOKENS.len()).expect("logits"));
    assert_close(&logits(&written), &trained, 2e-5);
    assert_eq!(written.tokenizer().expect("a tokenizer").get_vocab_size(true), 1280);
    assert!(written.warnings.is_empty(), "{:?}", written.warnings);
    written
}

#[test]
fn the_whole_teacher_computes_what_the_runtime_does() {
    let teacher = fixture();
    let student = build(&Spec::Layers(vec![0, 1, 2, 3]), &teacher, false, 0).expect("all blocks");
    let ours = testing::flat(&student.logits(&TOKENS, TOKENS.len()).expect("logits"));
    assert_close(&ours, &logits(&teacher), 2e-5);
}

#[test]
fn cut_students_open_again() {
    let teacher = fixture();
    let fewer = build(&Spec::Layers(vec![0, 3]), &teacher, false, 0).expect("two blocks");
    assert_eq!(fewer.shape().layers, 2);
    round_trip(&teacher, &fewer);
    let width = Width { hidden: Some(128), intermediate: Some(300), heads: Some(4), kv_heads: Some(2) };
    let narrow = build(&Spec::Width(width), &teacher, true, 0).expect("a narrower model");
    round_trip(&teacher, &narrow);
    let one_key = Width { heads: Some(3), kv_heads: Some(1), ..Width::default() };
    round_trip(&teacher, &build(&Spec::Width(one_key), &teacher, false, 0).expect("one key head"));
}

#[test]
fn a_cut_in_width_that_keeps_everything_is_the_teacher() {
    let teacher = fixture();
    let same = build(&Spec::Width(Width::default()), &teacher, false, 0).expect("nothing is cut");
    let ours = testing::flat(&same.logits(&TOKENS, TOKENS.len()).expect("logits"));
    assert_close(&ours, &logits(&teacher), 2e-5);
}

#[test]
fn qwen2_students_have_biases_and_a_head_of_their_own() {
    let teacher = fixture();
    let shape = Shape { biases: true, tied: false, hidden: 32, layers: 2, ..shape_of(&teacher).expect("a Llama") };
    let student = Student::new(&shape, 1280, DType::F32, 3).expect("a shape");
    for parameter in student.parameters().iter().filter(|p| p.name.ends_with("bias")) {
        let values = crate::random::normal(&mut crate::random::stream(1, 50), parameter.var.elem_count(), 0.5);
        let values = candle_core::Tensor::from_vec(values, parameter.var.shape(), parameter.var.device());
        parameter.var.set(&values.expect("its shape")).expect("the same shape");
    }
    let mut qwen = teacher.clone();
    if let Some(config) = qwen.config_json.as_mut().and_then(|c| c.as_object_mut()) {
        config.insert("model_type".into(), "qwen2".into());
        config.insert("architectures".into(), json!(["Qwen2ForCausalLM"]));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output =
        Output::of_student(testing::work(folder.path()), &qwen, &student, FloatType::F32).expect("a configuration");
    output.save(&student).expect("saved");
    let written = store::open(folder.path()).expect("it opens");
    let ours = testing::flat(&student.logits(&TOKENS, TOKENS.len()).expect("logits"));
    assert_close(&logits(&written), &ours, 2e-5);
    let cut = build(&Spec::Layers(vec![1]), &written, true, 0).expect("a Qwen2 teacher");
    assert!(cut.shape().biases && !cut.shape().tied);
    round_trip(&written, &cut);
    // It goes on from where it was, too.
    let again = build(&Spec::Model(folder.path().into()), &teacher, false, 0).expect("the teacher's tokenizer");
    assert_close(&testing::flat(&again.logits(&TOKENS, TOKENS.len()).expect("logits")), &ours, 2e-5);
}

#[test]
fn mistral_students_compute_what_the_runtime_does() {
    let mut mistral = fixture();
    if let Some(config) = mistral.config_json.as_mut().and_then(|c| c.as_object_mut()) {
        config.insert("model_type".into(), "mistral".into());
        config.insert("architectures".into(), json!(["MistralForCausalLM"]));
        config.insert("sliding_window".into(), Value::Null);
    }
    let written = round_trip(&mistral, &build(&Spec::Layers(vec![0, 2]), &mistral, false, 0).expect("two blocks"));
    assert_eq!(written.config_json.expect("a configuration")["model_type"], "mistral");
    // A window that would matter.
    mistral.config_json.as_mut().expect("a configuration")["sliding_window"] = json!(64);
    let error = build(&Spec::Layers(vec![0]), &mistral, false, 0).expect_err("a window").to_string();
    assert!(error.contains("sliding_window 64"), "{error}");
}

/// The fixture with the values of one tensor changed, in a folder.
fn changed(name: &str, change: impl Fn(&mut Vec<f32>, &mut Vec<usize>)) -> tempfile::TempDir {
    let (teacher, folder) = (fixture(), tempfile::tempdir().expect("a folder"));
    let student = build(&Spec::Layers(vec![0, 1, 2, 3]), &teacher, false, 0).expect("all blocks");
    let output =
        Output::of_student(testing::work(folder.path()), &teacher, &student, FloatType::F16).expect("a configuration");
    output.save(&student).expect("saved");
    let file = folder.path().join("model.safetensors");
    let mut weights = crate::checkpoint::load_weights(&file).expect("weights");
    let weight = weights.iter_mut().find(|w| w.name == name).expect("the tensor");
    change(&mut weight.values, &mut weight.shape);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = weights
        .into_iter()
        .map(|w| (w.name, w.shape, w.values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect()))
        .collect();
    let views = tensors.iter().map(|(name, shape, data)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F16, shape.clone(), data);
        (name.clone(), view.expect("its shape"))
    });
    std::fs::write(&file, safetensors::serialize(views, None).expect("serializes")).expect("written");
    folder
}

#[test]
fn values_that_are_not_finite_are_named() {
    for (name, value) in [("model.layers.2.mlp.up_proj.weight", f32::NAN), ("model.norm.weight", f32::INFINITY)] {
        let folder = changed(name, |values, _| values[7] = value);
        let broken = store::open(folder.path()).expect("it opens");
        for (spec, teacher) in [(Spec::Model(folder.path().into()), &fixture()), (Spec::Layers(vec![2]), &broken)] {
            let error = build(&spec, teacher, false, 0).expect_err("a broken weight").to_string();
            let path = folder.path().to_str().expect("UTF-8");
            assert!(error.contains(&format!("'{name}' holds the value {value}")) && error.contains(path), "{error}");
        }
        // As a teacher beside a student it is found by what it computes.
        let model = crate::teacher::Model::open(folder.path(), "cpu", "f32").expect("it opens");
        let windows = crate::Windows::new(&[TOKENS.to_vec()], 9, None).expect("long enough");
        let mut online = crate::teacher::Online::new(&model, &windows, 1.0);
        let error = crate::Teacher::soft(&mut online, 0).expect_err("no logits").to_string();
        assert!(error.contains("logits of window 0 are NaN or infinite") && error.contains(name), "{error}");
        // Labels of it leave nothing that another teacher's would stumble over.
        let output = folder.path().join("labels");
        let settings = Settings { kind: Kind::Full, temperatures: vec![], seed: 0 };
        let plan = Plan::new(&output, &model, &windows, settings).expect("a plan");
        let error = plan.write(Default::default(), &progress::Silent).expect_err("no logits").to_string();
        assert!(error.contains("after position 0 of window 0 are NaN or infinite") && error.contains(name), "{error}");
        assert!(!folder.path().join("labels.partial").exists());
    }
}

#[test]
fn a_student_with_fewer_rows_than_tokens_is_refused() {
    let cut = |rows: usize| {
        changed(EMBEDDING, move |values, shape| {
            values.resize(rows * shape[1], 0.0);
            shape[0] = rows;
        })
    };
    let build = |folder: &tempfile::TempDir| build(&Spec::Model(folder.path().into()), &fixture(), false, 0);
    let error = build(&cut(1279)).expect_err("a token is missing").to_string();
    assert!(error.contains("its embedding has 1279 rows, its tokenizer 1280 tokens"), "{error}");
    assert_eq!(build(&cut(1300)).expect("padding").vocabulary(), 1280);
}

#[test]
fn a_quantized_teacher_is_decoded() {
    let teacher = fixture();
    let student = build(&Spec::Layers(vec![0]), &teacher, false, 0).expect("one block");
    let folder = tempfile::tempdir().expect("a folder");
    let output =
        Output::of_student(testing::work(folder.path()), &teacher, &student, FloatType::BF16).expect("a configuration");
    output.save(&student).expect("saved");
    let coarse = store::open(folder.path()).expect("it opens");
    let again = build(&Spec::Layers(vec![0]), &coarse, false, 0).expect("its block");
    let ours = testing::flat(&again.logits(&TOKENS, TOKENS.len()).expect("logits"));
    assert_close(&ours, &logits(&coarse), 2e-5);
}

#[test]
fn nonsense_is_refused_with_its_reason() {
    let teacher = fixture();
    let says = |text: &str, freeze: bool, what: &str| {
        let made = Spec::parse(text).and_then(|spec| build(&spec, &teacher, freeze, 0));
        let error = made.expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    };
    says("layers:0,4", false, "blocks 0 to 3, no 4");
    says("layers:2,1", false, "ascending");
    says("layers:", false, "ascending");
    says("width:hidden", false, "width:hidden=384");
    says("width:hidden=8,hidden=9", false, "width:hidden=384");
    says("width:hidden=193", false, "can't be wider");
    says("width:heads=6,kv_heads=1", true, "can't be wider");
    says("width:heads=5", false, "can't share");
    says("nowhere", false, "is none of");
    let folder = tempfile::tempdir().expect("a folder");
    let toml = folder.path().join("student.toml");
    let sketch = |text: &str, freeze, what| {
        std::fs::write(&toml, text).expect("written");
        says(toml.to_str().expect("UTF-8"), freeze, what);
    };
    let small = "hidden = 64\nlayers = 1\nheads = 2\nkv_heads = 1\nintermediate = 64\n";
    sketch(small, true, "embeddings = \"teacher\"");
    sketch(&format!("{small}embeddings = \"teacher\"\n"), false, "don't fit");
    sketch("hidden = 64\nlayer = 1\n", false, "student.toml, line 2: unknown field `layer`");
    sketch(&small.replace("hidden = 64", "hidden = \"64\""), false, "line 1: invalid type");
    for huge in ["hidden = 4_000_000_000", "hidden = 9_000_000_000_000_000_000"] {
        sketch(&small.replace("hidden = 64", huge), false, " available; make the model smaller");
        sketch(&small.replace("layers = 1", &huge.replace("hidden", "layers")), false, "this machine has");
    }
}

#[test]
fn other_tokenizers_are_refused_with_both_sizes() {
    let (teacher, folder) = (fixture(), tempfile::tempdir().expect("a folder"));
    let (tokenizer, _) = testing::corpus();
    let output = Output::of_pretrained(testing::work(folder.path()), &testing::shape(), &tokenizer).expect("an output");
    output.save(&testing::student(1)).expect("saved");
    let error = build(&Spec::Model(folder.path().into()), &teacher, false, 0).expect_err("another tokenizer");
    assert!(error.to_string().contains("of 300 entries, is not the teacher's, of 1280"), "{error}");
}
