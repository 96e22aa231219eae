//! Of crates on CubeCL 0.12: what they have only there is under this `cfg`.

fn main() {
    println!("cargo::rerun-if-changed=../next/build.rs");
    println!("cargo::rustc-cfg=cubecl_0_12");
}
