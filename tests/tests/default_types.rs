//! A device whose default type is f16, as mobile programs configure it, changes no decision: what
//! Briquette counts and compares stays f32.

use std::{env, process::Command};

use briquette::{CacheConfig, CacheShape, KvCache, Policy, device, position::RotaryEmbedding};
use briquette_tests::{in_one_pass, inputs::Noise, profiles::profile};
use burn::tensor::{DType, Device, FloatDType};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 32 };
/// f16 has every whole number up to 2048.
const PROMPT: usize = 2500;
const CHILD: &str = "BRIQUETTE_DEFAULT_F16";

fn kept(policy: Policy, device: &Device) -> Vec<Vec<Vec<Vec<usize>>>> {
    let config = CacheConfig::default().with_dtype(DType::F32);
    let mut cache = KvCache::with_config(SHAPE, policy, config, device).unwrap();
    let rope = RotaryEmbedding::new(SHAPE.head_dim, PROMPT + 8, 10_000.0, device).unwrap();
    let mut noise = Noise::new(5);
    for new in [PROMPT, 1, 1, 1] {
        for layer in 0..SHAPE.layers {
            // The same numbers, whatever the default.
            let mut random = |heads| {
                let x = noise.tensor([1, heads, new, SHAPE.head_dim], device);
                x.cast(DType::F16).cast(DType::F32)
            };
            let (q, k, v) =
                (random(SHAPE.query_heads), random(SHAPE.kv_heads), random(SHAPE.kv_heads));
            cache.attend(layer, q, k, v, &rope).unwrap();
        }
    }
    (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap()).collect()
}

#[test]
fn f16_by_default_keeps_the_same_tokens() {
    let mut device = device::open("flex").unwrap();
    let is_child = env::var_os(CHILD).is_some();
    if is_child {
        device.configure(FloatDType::F16).unwrap();
    }
    let found: Vec<String> = in_one_pass(128)
        .map(|policy| {
            let policy = policy.with_profile(profile(SHAPE));
            let name = policy.name().to_owned();
            format!("kept by {name}: {:?}", kept(policy, &device))
        })
        .collect();
    if is_child {
        println!("{}", found.join("\n"));
        return;
    }
    // What a device is configured to is one choice per process.
    let child = Command::new(env::current_exe().unwrap())
        .args(["f16_by_default_keeps_the_same_tokens", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let out = String::from_utf8(child.stdout).unwrap();
    let theirs: Vec<&str> = out.lines().filter(|line| line.starts_with("kept by ")).collect();
    assert_eq!(theirs.len(), found.len(), "{}", String::from_utf8_lossy(&child.stderr));
    for (ours, theirs) in found.iter().zip(theirs) {
        assert!(ours == theirs, "f32: {ours}\nf16: {theirs}");
    }
}
