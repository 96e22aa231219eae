//! `briquette chat` through pipes and on a terminal, on the embedded model.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use tempfile::TempDir;

/// The embedded model has no chat template: this one gives it what is said.
const TEMPLATE: &str = "{% for message in messages %}{{ message.content }},{% endfor %}";

struct Chat {
    child: Child,
    _dir: TempDir,
}

fn chat(args: &[&str]) -> Chat {
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("template.jinja");
    fs::write(&template, TEMPLATE).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_briquette"));
    command.args(["chat", "--device", "flex", "--template", template.to_str().unwrap()]).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Chat { child: command.spawn().unwrap(), _dir: dir }
}

impl Chat {
    /// Stdout and stderr, when it has read these lines to their end.
    fn say(mut self, lines: &str) -> (String, String) {
        self.child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

/// Of each status line: tokens seen, and what stands behind.
fn statuses(stderr: &str) -> Vec<(usize, String)> {
    let lines =
        stderr.lines().filter_map(|line| line.strip_prefix('[')?.split_once(" tokens seen, "));
    lines.map(|(seen, rest)| (seen.parse().unwrap(), rest.to_owned())).collect()
}

fn long_line() -> String {
    "The gardener walked down to the river and looked at the boats. ".repeat(12)
}

#[test]
fn the_history_stays_compressed_from_turn_to_turn() {
    let lines = format!("{}\n\nIt was a dark night\nand then\n", long_line());
    let args = ["--policy", "tova", "--budget", "64", "--max-new-tokens", "8"];
    let (stdout, stderr) = chat(&args).say(&lines);
    let statuses = statuses(&stderr);
    // An empty line is no turn.
    assert_eq!(statuses.len(), 3, "{stderr}");
    assert!(stdout.lines().count() >= 3, "{stdout}");
    assert!(statuses[0].0 > 120, "{stderr}");
    for pair in statuses.windows(2) {
        // What is said, and an answer of 8 tokens, of which the last comes with the next turn.
        let grown = pair[1].0 - pair[0].0;
        assert!((9..24).contains(&grown), "{stderr}");
    }
    for (_, rest) in &statuses {
        assert!(rest.starts_with("64 kept, ") && rest.ends_with(" tokens/s]"), "{rest}");
    }
    // The same text in one turn after a reset is seen from its start.
    let (_, again) = chat(&args).say(&format!("{}\n/reset\nIt was\n", long_line()));
    let again = self::statuses(&again);
    assert_eq!(again[0].0, statuses[0].0);
    assert!(again[1].0 < 24, "{again:?}");
}

#[test]
fn turns_are_what_one_prompt_is() {
    // With everything kept, what is answered to the second line does not depend on how the first
    // came.
    let args = ["--policy", "full", "--max-new-tokens", "6"];
    let (stdout, stderr) = chat(&args).say("It was a dark night\nand the rain\n");
    let answers: Vec<&str> = stdout.lines().collect();
    let [first, second] = answers[..] else { panic!("{answers:?}") };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    let template = dir.path().join("template.jinja");
    fs::write(&file, format!("It was a dark night,{first},and the rain,")).unwrap();
    fs::write(&template, "{{ messages[0].content }}").unwrap();
    let generate = Command::new(env!("CARGO_BIN_EXE_briquette"))
        .args(["generate", "--device", "flex", "--chat"])
        .args(args)
        .args(["--template", template.to_str().unwrap(), "--file", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(generate.stdout).unwrap(), format!("{second}\n"), "{stderr}");
}

#[test]
fn a_model_without_a_template_is_told_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_briquette")).arg("chat").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("no chat template") && error.contains("--template"), "{error}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_an_answer_and_then_the_program() {
    let interrupt = |child: &Child| {
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    };
    // Greedy, the model repeats itself here for as long as it may.
    let mut chat =
        chat(&["--policy", "streaming-llm", "--budget", "64", "--max-new-tokens", "3900"]);
    let mut stdin = chat.child.stdin.take().unwrap();
    let mut stdout = chat.child.stdout.take().unwrap();
    let mut stderr = BufReader::new(chat.child.stderr.take().unwrap());
    let (heard, pieces) = mpsc::channel();
    let listener = thread::spawn(move || {
        let mut bytes = [0; 64];
        while stdout.read(&mut bytes).is_ok_and(|count| count > 0) {
            heard.send(()).unwrap();
        }
    });
    let mut seen = 0;
    for _ in 0..2 {
        stdin.write_all(b"It was a dark and stormy night, and\n").unwrap();
        pieces.recv().unwrap();
        interrupt(&chat.child);
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let (now, _) = statuses(&line).remove(0);
        assert!(seen < now && now < seen + 2000, "{line}");
        seen = now;
        // The rest of the answer, which was written before its status.
        while pieces.recv_timeout(Duration::from_millis(500)).is_ok() {}
    }
    // By now it waits for a line.
    interrupt(&chat.child);
    assert_eq!(chat.child.wait().unwrap().code(), Some(130));
    listener.join().unwrap();
}

/// A chat on a terminal of its own, which `script` makes: what is typed goes to it when it asks for
/// it.
#[cfg(target_os = "linux")]
struct Terminal {
    chat: Chat,
    seen: mpsc::Receiver<Vec<u8>>,
    shown: String,
}

#[cfg(target_os = "linux")]
impl Terminal {
    fn open(args: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let template = dir.path().join("template.jinja");
        fs::write(&template, TEMPLATE).unwrap();
        let command = format!(
            "{} chat --device flex --template {} {args}",
            env!("CARGO_BIN_EXE_briquette"),
            template.display()
        );
        let mut script = Command::new("script");
        script.args(["-qefc", &command, "/dev/null"]).env("TERM", "xterm");
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = script.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (heard, seen) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = stdout.read(&mut bytes) {
                if count == 0 || heard.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { chat: Chat { child, _dir: dir }, seen, shown: String::new() }
    }

    /// Waits until this is shown, and gives what was shown until then.
    fn wait(&mut self, text: &str) -> String {
        while !self.shown.contains(text) {
            let bytes = self.seen.recv_timeout(Duration::from_secs(60));
            let bytes = bytes.unwrap_or_else(|_| panic!("`{text}` is not in {:?}", self.shown));
            self.shown += &String::from_utf8_lossy(&bytes);
        }
        let end = self.shown.find(text).unwrap() + text.len();
        self.shown.drain(..end).collect()
    }

    fn write(&mut self, keys: &str) {
        self.chat.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_takes_a_paste_of_any_length_and_commands() {
    let args = ["--policy", "tova", "--budget", "64", "--max-new-tokens", "4"];
    // A terminal that is read by the line cuts it at 4,095 bytes.
    let long = long_line().repeat(9) + "and the end";
    assert!(long.len() > 6_000);
    let (_, piped) = chat(&args).say(&format!("{long}\n"));

    let mut terminal = Terminal::open(&args.join(" "));
    let banner = terminal.wait("> ");
    for part in ["ember-7m", "tova with a budget of 64", "/help"] {
        assert!(banner.contains(part), "{banner}");
    }
    // As terminals send what is pasted, here of two lines.
    let (first, rest) = long.split_at(3_000);
    terminal.write(&format!("\x1b[200~{first}\r{rest}\x1b[201~\r"));
    let status = terminal.wait(" tokens seen");
    let seen = status.trim_end_matches(" tokens seen").rsplit('[').next().unwrap();
    let seen: usize = seen.parse().unwrap();
    let whole = statuses(&piped)[0].0;
    assert!((whole..whole + 4).contains(&seen), "{seen} tokens of {whole}");

    for (said, answer) in [
        ("/policy snapkv 25%", "a new conversation: snapkv with a budget of 25%"),
        ("/policy nothing", "unknown method `nothing`"),
        ("/nothing", "there is no /nothing"),
        ("/policy", "snapkv with a budget of 25%"),
    ] {
        terminal.write(&format!("{said}\r"));
        terminal.wait(answer);
    }
    terminal.write("/quit\r");
    assert!(terminal.chat.child.wait().unwrap().success());
}
