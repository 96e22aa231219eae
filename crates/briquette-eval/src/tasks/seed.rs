use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

/// A generator of its own for every combination of `parts`, the same on every machine: a sample
/// does not change when others are added to the grid.
pub(crate) fn rng(parts: &[u64]) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(hash(parts.iter().flat_map(|part| part.to_le_bytes())))
}

/// FNV-1a.
pub(crate) fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;

    #[test]
    fn every_part_counts() {
        let first = |parts: &[u64]| rng(parts).next_u64();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[1, 2]), first(&[1, 3]));
    }
}
