//! A successor that hangs when the sockets are all but its own (operations.md, "Hot
//! restart": whatever becomes of the successor, the old process serves on).

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use cube_testkit::serde_json::json;
use cube_testkit::{Origin, within};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::support::own;

/// Says all that a successor says up to the last word, and not that.
const HANGS: &str = r#"
import json, socket, struct, sys, time
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
def say(**word):
    text = json.dumps(word).encode()
    link.sendall(struct.pack(">I", len(text)) + text)
def read(size):
    taken = b""
    while len(taken) < size:
        piece = link.recv(size - len(taken))
        assert piece
        taken += piece
    return taken
def heard():
    return json.loads(read(struct.unpack(">I", read(4))[0]))["say"]
say(say="upgrade", protocol=1, version="9\nforged line")
assert heard() == "sockets"
say(say="ready")
while heard() != "known":
    pass
say(say="taken")
assert heard() == "begin"
print("told to begin", flush=True)
time.sleep(60)
"#;

#[tokio::test]
async fn a_successor_that_was_told_to_begin_and_hangs_is_ended_and_the_old_process_serves_on() {
    let env = own(json!({})).await;
    let origin = Origin::replying(200, &[], "ok").await;
    let sandbox = env.sandbox(&origin).await;
    let socket = env.proxy.directory().join("upgrade.sock");
    let mut hangs = Command::new("python3")
        .args(["-c", HANGS])
        .arg(&socket)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(hangs.stdout.take().unwrap()).lines();
    let word = within("the word to begin", said.next_line()).await.unwrap();
    assert_eq!(word.as_deref(), Some("told to begin"));
    env.get(&sandbox, "/").await.passed(200);
    let ended = within("its end", hangs.wait()).await.unwrap();
    assert_eq!(ended.signal(), Some(9));
    env.proxy.output_line(&["was ended"]).await;
    env.get(&sandbox, "/").await.passed(200);
    assert!(!env.proxy.output().lines().any(|line| line.starts_with("forged line")));
    // The next one takes over.
    env.proxy.upgrade().await;
    env.get(&sandbox, "/").await.passed(200);
}
