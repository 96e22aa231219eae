//! Serves a device to programs on this machine or others, by Burn's `remote` backend: they name it
//! `remote:ws://HOST:PORT`.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, Result};
use burn::server::{RemoteServer, WebSocketTransport};
use clap::Parser;

/// Serves a device to programs on this machine or others, which name it `remote:ws://HOST:PORT`.
/// Whoever reaches the port can use the device.
#[derive(Debug, Parser)]
struct Args {
    /// The device, as `briquette::device::open` names it
    #[arg(long)]
    device: String,
    /// The address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:3000")]
    at: SocketAddr,
}

fn main() -> Result<()> {
    let Args { device, at } = Args::parse();
    let device = briquette::device::open(&device)?;
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    println!("remote:ws://{}", listener.local_addr()?);
    let transport = WebSocketTransport::from_listener(listener);
    RemoteServer::new([device]).serve(transport).with_context(|| format!("cannot serve at {at}"))
}
