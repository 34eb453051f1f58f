#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]
use schemes::GgmlType;
use std::io::Write;
use std::path::Path;
use store::gguf::{self, HfSource, Plan, PlannedTensor};
use store::{Bytes, DType};
fn ty(d: DType) -> GgmlType {
    match d {
        DType::F32 => GgmlType::F32,
        DType::F16 => GgmlType::F16,
        DType::Ggml(t) => t,
        _ => panic!(),
    }
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let path = Path::new(&a[1]);
    let t = std::time::Instant::now();
    let m = gguf::read(path, &Bytes::map(path).unwrap()).unwrap();
    println!("read {:?}, {} tensors, warnings {:?}", t.elapsed(), m.tensors.len(), m.warnings);
    println!("{:#}", m.config_json.clone().unwrap());
    for s in &m.side_files {
        println!("{} {}", s.name, s.data.len());
        std::fs::write(format!("{}/{}", a[2], s.name), &*s.data).unwrap();
    }
    std::fs::write(format!("{}/config.json", a[2]), m.config_json.clone().unwrap().to_string()).unwrap();
    for (n, t) in m.tensors.iter().take(12) {
        println!("{n} {:?} {:?} {:?} {}", t.dtype, t.shape, t.order, t.stored_name);
    }
    let cfg = m.config_json.clone().unwrap();
    let emb = m.tensors["model.embed_tokens.weight"].shape[0];
    let t = std::time::Instant::now();
    let md = gguf::metadata_from_hf(&HfSource {
        path,
        config: &cfg,
        side_files: &m.side_files,
        name: "test",
        vocab_rows: emb,
        file_type: 3,
    })
    .unwrap();
    println!("export {:?} {:?} {:?}", t.elapsed(), md.warnings, md.extra);
    let planned: Vec<_> = m
        .tensors
        .iter()
        .map(|(n, t)| PlannedTensor::new(gguf::hf_to_gguf_name(n).unwrap(), ty(t.dtype), &t.shape))
        .collect();
    let plan = Plan::new(path, &md.metadata, &planned).unwrap();
    let mut out = std::fs::File::create(format!("{}/out.gguf", a[2])).unwrap();
    out.write_all(plan.header()).unwrap();
    let mut at = plan.header().len() as u64;
    for (i, t) in m.tensors.values().enumerate() {
        out.write_all(&vec![0; (plan.offset(i) - at) as usize]).unwrap();
        assert_eq!(t.data.len() as u64, plan.tensor_len(i));
        out.write_all(&t.data).unwrap();
        at = plan.offset(i) + t.data.len() as u64;
    }
    out.write_all(&vec![0; (plan.file_len() - at) as usize]).unwrap();
    let t = std::time::Instant::now();
    let tok =
        tokenizers::Tokenizer::from_bytes(&*m.side_files.iter().find(|s| s.name == "tokenizer.json").unwrap().data)
            .unwrap();
    println!("tokenizer {:?} vocab {}", t.elapsed(), tok.get_vocab_size(true));
    for f in &a[3..] {
        let text = std::fs::read_to_string(f).unwrap();
        let ids = tok.encode(text.as_str(), true).unwrap().get_ids().to_vec();
        assert_eq!(tok.decode(&ids, false).unwrap(), text, "decodes");
        std::fs::write(
            format!("{}/{}.ids", a[2], Path::new(f).file_name().unwrap().to_str().unwrap()),
            format!("{ids:?}"),
        )
        .unwrap();
        println!("{f} {} tokens {:?}", ids.len(), &ids[..8]);
    }
    let t = std::time::Instant::now();
    let mut sum = 0f64;
    let mut n = 0;
    for t in m.tensors.values() {
        if let DType::Ggml(g) = t.dtype {
            let mut o = vec![0f32; t.shape[1]];
            let rb = g.row_bytes(t.shape[1]).unwrap();
            for r in t.data.chunks_exact(rb) {
                schemes::ggml::decode(g, r, &mut o);
                sum += o[0] as f64;
                n += o.len();
            }
        }
    }
    println!("decoded {n} in {:?} sum {sum}", t.elapsed());
    for g in GgmlType::all().filter(|g| g.is_decodable()) {
        let b = vec![0x31u8; g.block_bytes() * (4096 / g.block_len())];
        let mut o = vec![0f32; 4096];
        let t = std::time::Instant::now();
        let reps = 2000;
        for _ in 0..reps {
            schemes::ggml::decode(g, std::hint::black_box(&b), &mut o);
            std::hint::black_box(&o);
        }
        let dec = 4096.0 * reps as f64 / t.elapsed().as_secs_f64() / 1e9;
        let enc = if g.is_encodable() {
            let src: Vec<f32> = (0..4096).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.01).collect();
            let mut v = Vec::new();
            let t = std::time::Instant::now();
            for _ in 0..reps {
                v.clear();
                schemes::ggml::encode_rows(g, &src, 4096, 0, &mut v).unwrap();
                std::hint::black_box(&v);
            }
            4096.0 * reps as f64 / t.elapsed().as_secs_f64() / 1e9
        } else {
            0.0
        };
        println!("{g}: decode {dec:.2} Gw/s encode {enc:.2}");
    }
}
