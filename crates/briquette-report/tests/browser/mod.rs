//! Chromium without a window, driven over the DevTools protocol: messages in JSON, each ended by a
//! zero byte, through the pipes 3 and 4 of the process. So no port is opened, and no client of a
//! network is needed.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// Names of browsers, in the order they are tried.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
     --disable-background-networking --disable-component-update --disable-sync \
     --disable-dev-shm-usage --remote-debugging-pipe";
/// A machine may be busy with other tests.
const PATIENCE: Duration = Duration::from_secs(90);

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// In CSS pixels.
    pub(crate) width: u32,
    /// In CSS pixels.
    pub(crate) height: u32,
    /// Whether the reader likes it dark.
    pub(crate) dark: bool,
}

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    last: u64,
    events: Vec<Value>,
}

impl Browser {
    /// Starts one with an empty profile in this folder.
    pub(crate) fn start(profile: &Path) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = NAMES.iter().find_map(|name| {
            std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
        });
        let program = found.unwrap_or_else(|| {
            panic!(
                "none of {NAMES:?} is on the path. Install one (Debian: apt-get install chromium), or set \
                 BRIQUETTE_NO_BROWSER to do without these tests"
            )
        });
        // The shell makes the standard streams the pipes that Chromium speaks through.
        let mut process = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1"#])
            .arg(program)
            .args(FLAGS.split(' '))
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, from) = channel();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        thread::spawn(move || {
            let mut bytes = Vec::new();
            while answers.read_until(0, &mut bytes).is_ok_and(|count| count > 0) {
                if bytes.pop() != Some(0) {
                    break;
                }
                let Ok(()) = send.send(serde_json::from_slice(&bytes).unwrap()) else { break };
                bytes.clear();
            }
        });
        let to = process.stdin.take().unwrap();
        let mut browser = Self { process, to, from, session: None, last: 0, events: Vec::new() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", target);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method, and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all((message.to_string() + "\0").as_bytes()).unwrap();
        loop {
            let answer = self.next(method);
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
        }
    }

    /// The next message. Events are kept.
    fn next(&mut self, waiting: &str) -> Value {
        let message = self
            .from
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|error| panic!("waiting for {waiting}: {error}"));
        if message["id"].is_null() {
            self.events.push(message.clone());
        }
        message
    }

    /// Sets size and colours.
    pub(crate) fn look(&mut self, Look { width, height, dark }: Look) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Opens a file, and waits until it is there.
    pub(crate) fn open(&mut self, file: &Path) {
        let url = format!("file://{}", file.display());
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{opened}");
        let loader = &opened["loaderId"];
        while self.value("document.readyState + location.href") != format!("complete{url}") {
            thread::sleep(Duration::from_millis(20));
        }
        assert!(loader.is_string(), "{opened}");
    }

    /// The value of an expression on the page; of a promise what it brings.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Writes text where the cursor is.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses the key.
    pub(crate) fn press_enter(&mut self) {
        for kind in ["keyDown", "keyUp"] {
            let mut key = json!({ "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13 });
            if kind == "keyDown" {
                key["text"] = json!("\r");
            }
            self.call("Input.dispatchKeyEvent", key);
        }
    }

    /// Exceptions, what was written to the console, what the browser had to say against the page,
    /// and dialogs.
    pub(crate) fn complaints(&mut self) -> Vec<Value> {
        // Everything before the answer has come by then.
        self.value("new Promise((done) => setTimeout(done, 50))");
        let of = [
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
            "Page.javascriptDialogOpening",
        ];
        let complaint = |event: &&Value| of.iter().any(|method| event["method"] == *method);
        self.events.iter().filter(complaint).cloned().collect()
    }

    /// The addresses the page asked for.
    pub(crate) fn requests(&self) -> Vec<String> {
        let asked =
            self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        let address =
            |event: &Value| event["params"]["request"]["url"].as_str().unwrap().to_owned();
        asked.map(address).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends its own processes when asked; and is ended when it does not.
        let message = json!({ "id": 0, "method": "Browser.close" }).to_string() + "\0";
        let asked = self.to.write_all(message.as_bytes());
        for _ in 0..100 {
            if asked.is_err() || self.process.try_wait().is_ok_and(|done| done.is_some()) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
