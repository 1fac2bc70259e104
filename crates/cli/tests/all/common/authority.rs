//! An authority of certificates, as the `openssl` command makes one.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use super::{output, text};

/// Settings of `openssl req` and `openssl ca`, in the folder of the authority.
const SETTINGS: &str = "
[req]
distinguished_name = nothing
[nothing]
[ca]
default_ca = this
[this]
database = signed
serial = serial
crlnumber = lists
new_certs_dir = .
certificate = authority.pem
private_key = authority.key
default_md = sha256
default_days = 30
default_crl_days = 30
policy = any
unique_subject = no
[any]
organizationName = optional
commonName = optional
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
";

/// An authority, and the folder for what it signs.
pub struct Authority {
    folder: PathBuf,
    /// File of the certificate that is to be trusted.
    pub file: PathBuf,
    /// Certificates between those that it signs and the one that is trusted.
    pub between: String,
}

/// Contents of a certificate.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub subject: &'a str,
    /// Alternative names, as in openssl's settings; empty: none.
    pub names: &'a str,
    /// Extended key usage.
    pub usage: &'a str,
    pub is_authority: bool,
    /// From and until when it is valid, as openssl writes times.
    pub dates: Option<[&'a str; 2]>,
    /// Options of `openssl req` that choose the kind of key.
    pub key: &'a [&'a str],
}

pub const EC: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

impl<'a> Wanted<'a> {
    /// That of a server with these names.
    pub const fn server(names: &'a str) -> Wanted<'a> {
        Wanted {
            subject: "/CN=server",
            names,
            usage: "serverAuth",
            is_authority: false,
            dates: None,
            key: EC,
        }
    }

    /// That of a program.
    pub const fn client(subject: &'a str) -> Wanted<'a> {
        Wanted {
            subject,
            usage: "clientAuth",
            ..Wanted::server("")
        }
    }
}

impl Authority {
    /// Makes one that signs itself.
    pub fn new(folder: &Path, name: &str) -> Authority {
        let authority = Authority::in_folder(folder, name);
        let subject = format!("/CN={name}");
        let mut args = vec!["req", "-x509", "-config", "settings", "-newkey"];
        args.extend(EC);
        args.extend(["-nodes", "-extensions", "authority", "-subj", &subject]);
        args.extend(["-keyout", "authority.key", "-out", "authority.pem"]);
        authority.openssl(&args);
        authority
    }

    /// Makes one below this one.
    pub fn below(&self, name: &str) -> Authority {
        let mut below = Authority::in_folder(&self.folder, name);
        let subject = format!("/CN={name}");
        let [chain, key] = self.sign(&Wanted {
            is_authority: true,
            ..Wanted::client(&subject)
        });
        fs::write(below.folder.join("authority.pem"), &chain).unwrap();
        fs::write(below.folder.join("authority.key"), key).unwrap();
        below.between = chain;
        below.file.clone_from(&self.file);
        below
    }

    fn in_folder(folder: &Path, name: &str) -> Authority {
        let folder = folder.join(name);
        fs::create_dir(&folder).unwrap();
        for (file, text) in [
            ("settings", SETTINGS),
            ("signed", ""),
            ("serial", "1000\n"),
            ("lists", "01\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        let file = folder.join("authority.pem");
        Authority {
            folder,
            file,
            between: String::new(),
        }
    }

    /// Signs a certificate; returns the texts of its chain, below the trusted one, and of its key.
    pub fn sign(&self, wanted: &Wanted<'_>) -> [String; 2] {
        let mut args = vec!["req", "-new", "-config", "settings", "-newkey"];
        args.extend(wanted.key);
        args.extend(["-nodes", "-subj", wanted.subject]);
        args.extend(["-keyout", "new.key", "-out", "new.request"]);
        self.openssl(&args);
        let mut extensions = match wanted.is_authority {
            true => "basicConstraints = critical, CA:TRUE\n".to_owned(),
            false => format!("extendedKeyUsage = {}\n", wanted.usage),
        };
        if !wanted.names.is_empty() {
            extensions += &format!("subjectAltName = {}\n", wanted.names);
        }
        fs::write(self.folder.join("extensions"), extensions).unwrap();
        let mut args = vec!["ca", "-batch", "-notext", "-config", "settings"];
        args.extend(["-extfile", "extensions"]);
        args.extend(["-in", "new.request", "-out", "new.pem"]);
        if let Some([from, until]) = wanted.dates {
            args.extend(["-startdate", from, "-enddate", until]);
        }
        self.openssl(&args);
        let [signed, key] = ["new.pem", "new.key"].map(|file| self.folder.join(file));
        let [signed, key] = [signed, key].map(|file| fs::read_to_string(file).unwrap());
        [signed + &self.between, key]
    }

    /// Revokes a certificate that it has signed; returns the list of those it has revoked.
    pub fn revoke(&self, certificate: &Path) -> String {
        let certificate = certificate.to_str().unwrap();
        self.openssl(&["ca", "-config", "settings", "-revoke", certificate]);
        self.openssl(&["ca", "-config", "settings", "-gencrl", "-out", "list.pem"]);
        fs::read_to_string(self.folder.join("list.pem")).unwrap()
    }

    fn openssl(&self, args: &[&str]) {
        let mut command = Command::new("openssl");
        let ended = output(command.args(args).current_dir(&self.folder));
        assert!(ended.status.success(), "{args:?}: {}", text(&ended.stderr));
    }
}

/// Writes a certificate and its key; returns the paths.
pub fn write_pair(folder: &Path, name: &str, [chain, key]: &[String; 2]) -> [PathBuf; 2] {
    let paths = [".pem", ".key"].map(|end| folder.join(format!("{name}{end}")));
    fs::write(&paths[0], chain).unwrap();
    fs::write(&paths[1], key).unwrap();
    fs::set_permissions(&paths[1], fs::Permissions::from_mode(0o600)).unwrap();
    paths
}
