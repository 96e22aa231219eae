use cubecl::prelude::Client;

/// Multiprocessors of a device that does not say how many it has.
const UNSAID: usize = 16;

/// Multiprocessors of the device.
pub(crate) fn processors(client: &Client) -> usize {
    let processors = client.properties().hardware.num_streaming_multiprocessors;
    processors.map_or(UNSAID, |processors| processors as usize)
}
