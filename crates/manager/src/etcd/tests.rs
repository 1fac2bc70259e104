//! The suite of stores, on a member of etcd that the test starts (`tools/etcd.sh` installs it).

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use outboard_pool::{Store as _, StoreError, Transaction, suite};
use serde_json::json;

use super::*;

struct Member {
    process: Child,
    url: EtcdUrl,
    _folder: tempfile::TempDir,
}

impl Member {
    fn start() -> Member {
        let folder = tempfile::tempdir().unwrap();
        let port = || {
            TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
        };
        let (client, peer) = (port(), port());
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.path())
            .args(["--listen-client-urls", &format!("http://{client}")])
            .args(["--advertise-client-urls", &format!("http://{client}")])
            .args(["--listen-peer-urls", &format!("http://{peer}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
            .args(["--initial-cluster", &format!("default=http://{peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is missing: tools/etcd.sh installs it");
        let Ok(StoreUrl::Etcd(url)) = format!("etcd://{client}/test").parse() else {
            panic!("no address");
        };
        let member = Member {
            process,
            url,
            _folder: folder,
        };
        let limit = Instant::now() + Duration::from_secs(30);
        while member.open().is_err() {
            assert!(Instant::now() < limit, "etcd does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        member
    }

    fn open(&self) -> Result<EtcdStore, StoreError> {
        EtcdStore::open(&self.url, Cluster::new(&self.url, None), None)
    }

    fn lead(&self, address: &str) -> Campaign {
        Leadership::campaign(&self.url, None, address).unwrap()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn one(key: &str) -> Transaction {
    Transaction {
        compare: vec![],
        write: vec![(key.into(), Some(b"x".to_vec()))],
    }
}

#[test]
fn etcd_is_a_store() {
    let member = Member::start();
    let mut store = member.open().unwrap();
    suite::obeys_the_rules(&mut store);
    // More than etcd takes at once.
    let write = |at: usize| (format!("many/{at:05}"), Some(vec![7; 300]));
    let many = Transaction {
        compare: vec![],
        write: (0..2_345).map(write).collect(),
    };
    let revision = store.commit(&many).unwrap();
    assert_eq!(store.load().unwrap().len(), 2_346);
    assert_eq!(member.open().unwrap().load().unwrap().len(), 2_346);
    // Another user of the store has written meanwhile.
    member.open().unwrap().commit(&one("many/0")).unwrap();
    assert!(matches!(
        store.commit(&one("many/1")),
        Err(StoreError::Conflict)
    ));
    assert_eq!(store.load().unwrap().len(), 2_347);
    let last = store.commit(&one("many/1")).unwrap();
    assert_eq!(store.changes(revision).unwrap().len(), 2);
    let mut cluster = Cluster::new(&member.url, None);
    let compact = json!({ "revision": last.to_string(), "physical": true });
    cluster.ask("/v3/kv/compaction", &compact).unwrap();
    let forgotten = store.changes(1);
    assert!(matches!(forgotten, Err(StoreError::Compacted(1))));
}

#[test]
fn one_manager_leads_and_the_one_before_writes_nothing() {
    let member = Member::start();
    let Campaign::Leads(first) = member.lead("http://first:1") else {
        panic!("nobody leads");
    };
    let Campaign::Other(address) = member.lead("http://second:2") else {
        panic!("two lead");
    };
    assert_eq!(address, "http://first:1");
    let open = |leader: &Leadership| {
        let cluster = Cluster::new(&member.url, None);
        EtcdStore::open(&member.url, cluster, Some(leader)).unwrap()
    };
    let mut old = open(&first);
    old.commit(&one("a")).unwrap();
    drop(first);
    let Campaign::Leads(second) = member.lead("http://second:2") else {
        panic!("the first one's key is still there");
    };
    // Nobody has written since, but the leader is another one.
    assert!(matches!(old.commit(&one("b")), Err(StoreError::Conflict)));
    assert!(old.commit(&Transaction::default()).is_err());
    open(&second).commit(&one("c")).unwrap();
}

#[test]
fn a_journal_that_was_left_is_finished() {
    let member = Member::start();
    let mut store = member.open().unwrap();
    store.commit(&one("a")).unwrap();
    // As if the manager had died after the journal was written.
    let writes: Vec<(String, Option<Vec<u8>>)> =
        vec![("a".into(), None), ("b".into(), Some(b"y".to_vec()))];
    let key = format!("{}journal", member.url.prefix());
    let put = json!({
        "key": cluster::text(key.as_bytes()), "value": cluster::text(&postcard::to_stdvec(&writes).unwrap())
    });
    Cluster::new(&member.url, None)
        .ask("/v3/kv/put", &put)
        .unwrap();
    let entries = member.open().unwrap().load().unwrap();
    let keys: Vec<_> = entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["b"]);
}

#[test]
fn a_cluster_that_does_not_answer_is_an_error() {
    let Ok(StoreUrl::Etcd(url)) = "etcd://127.0.0.1:1,127.0.0.1:2".parse() else {
        panic!("no address");
    };
    assert!(EtcdStore::open(&url, Cluster::new(&url, None), None).is_err());
    assert!(Leadership::campaign(&url, None, "http://a:1").is_err());
}

#[test]
fn an_error_names_the_member_and_what_came() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 4_096];
        assert!(stream.read(&mut asked).unwrap() > 0);
        let said = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnone\n";
        stream.write_all(said).unwrap();
    });
    let Ok(StoreUrl::Etcd(url)) = format!("etcd://{address}").parse() else {
        panic!("no address");
    };
    let said = Cluster::new(&url, None).ask("/v3/kv/range", &serde_json::json!({}));
    let text = said.expect_err("no etcd answered").to_string();
    let expected = format!("http://{address}: an answer that is not etcd's, of status 404");
    assert_eq!(text, expected);
}

#[test]
fn addresses() {
    let file: StoreUrl = "/var/lib/pool".parse().unwrap();
    assert_eq!(file, StoreUrl::File("/var/lib/pool".into()));
    for good in ["etcd://a:1", "etcd://a:1,b:2/x", "etcds://10.0.0.1:2379/y"] {
        assert!(matches!(good.parse(), Ok(StoreUrl::Etcd(_))), "{good}");
    }
    for wrong in [
        "etcd://",
        "etcd://a",
        "etcd://a:1/",
        "etcd://a:1/b/c",
        "etcd://a:1,",
    ] {
        assert!(wrong.parse::<StoreUrl>().is_err(), "{wrong}");
    }
}
