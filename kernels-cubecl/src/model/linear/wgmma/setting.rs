use std::num::NonZeroUsize;

use super::kernel::LinearGroupsBlueprint;
use cubecl::tile::space::CubeOrder;
use cubek::{
    matmul::kernels::{CUBE_STRIPS, CubeStagedMatmulRoutineSettings},
    microkernel::matmul::{
        cube::{
            CubeStagedDelivery, CubeStagedMicrokernelSettings, CubeStagedStore, MatmulPlaneLayout,
        },
        plane::{PlaneFragmentMicrokernelSettings, PlaneFragmentTransport},
    },
    std::microkernel::StageRing,
};

/// Numbers of the contraction in a stage, in products: what 128 bytes have.
const DEPTH: usize = 4;

/// How a product is computed.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Setting {
    /// By the kernel of our own.
    Groups(LinearGroupsBlueprint),
    /// By CubeK's staged routine.
    Staged(StagedSetting),
}

/// How a cube of CubeK's staged routine multiplies a tile.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct StagedSetting {
    /// Groups of 128 threads along the rows of `x`, each with 64 of them.
    down: usize,
    /// Groups along the outputs.
    across: usize,
    /// Outputs of a group.
    outputs: usize,
    /// Stages in shared memory.
    stages: usize,
    /// Order of tiles.
    order: Order,
    /// Whether the tensor memory accelerator writes the sums, too.
    bulk_store: bool,
}

/// Order of the tiles of a product.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Tiles of the same rows after each other.
    Rows,
    /// Strips of rows: what cubes read together stays in the L2 cache.
    Strips,
}

const fn groups(groups: usize, outputs: usize, stages: usize) -> Setting {
    Setting::Groups(LinearGroupsBlueprint { groups, outputs, stages })
}

const fn staged(down: usize, across: usize, outputs: usize, stages: usize) -> StagedSetting {
    StagedSetting { down, across, outputs, stages, order: Order::Rows, bulk_store: false }
}

/// What the table chooses from.
pub(in super::super) const SETTINGS: [Setting; 21] = [
    groups(2, 256, 4),
    groups(2, 192, 5),
    groups(2, 128, 6),
    groups(2, 64, 8),
    groups(1, 256, 5),
    groups(1, 128, 8),
    groups(1, 128, 4),
    groups(1, 64, 6),
    groups(1, 32, 8),
    groups(4, 128, 4),
    Setting::Staged(staged(2, 1, 256, 4)),
    Setting::Staged(StagedSetting { order: Order::Strips, ..staged(2, 1, 256, 4) }),
    Setting::Staged(StagedSetting { bulk_store: true, ..staged(2, 1, 256, 3) }),
    Setting::Staged(staged(2, 1, 128, 4)),
    Setting::Staged(StagedSetting {
        order: Order::Strips,
        bulk_store: true,
        ..staged(2, 1, 128, 4)
    }),
    Setting::Staged(staged(2, 2, 128, 4)),
    Setting::Staged(staged(1, 1, 256, 4)),
    Setting::Staged(staged(1, 1, 128, 6)),
    Setting::Staged(staged(1, 1, 64, 8)),
    Setting::Staged(staged(1, 1, 32, 8)),
    Setting::Staged(staged(2, 1, 64, 6)),
];

impl StagedSetting {
    /// As CubeK has it.
    pub(super) fn in_cubek(self) -> CubeStagedMatmulRoutineSettings {
        let Self { down, across, outputs, stages, order, bulk_store } = self;
        let stages_in_flight = NonZeroUsize::new(stages).unwrap_or(NonZeroUsize::MIN);
        let plane = PlaneFragmentMicrokernelSettings::grid(1, outputs / 8, DEPTH);
        let planes = MatmulPlaneLayout::new(down, across);
        let store = if bulk_store { CubeStagedStore::Tma } else { CubeStagedStore::Fragments };
        let microkernel = CubeStagedMicrokernelSettings {
            store,
            ..CubeStagedMicrokernelSettings::boxed(plane, planes)
                .ringed(StageRing { stages_in_flight, ..StageRing::DOUBLE })
                .through(PlaneFragmentTransport::Wgmma)
                // A plane of its own asks for what comes next.
                .filled(CubeStagedDelivery::Tma, 1)
        };
        let cube_order = match order {
            Order::Rows => CubeOrder::RowMajor,
            Order::Strips => CUBE_STRIPS[0],
        };
        CubeStagedMatmulRoutineSettings { microkernel, cube_order }
    }
}
