//! `outboard nic run`: becomes the program, with our stand-ins before rdma-core's libraries.

use std::{
    env,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use anyhow::Context as _;

use crate::{
    args::{NicCommand, NicRunArgs},
    libraries,
    run::{not_started, preloading, prepend},
    stack,
};

pub(crate) fn nic(command: NicCommand) -> anyhow::Result<ExitCode> {
    let NicCommand::Run(NicRunArgs { fabric, program }) = command;
    let [program, arguments @ ..] = program.as_slice() else {
        anyhow::bail!("no program to run");
    };
    let folder = libraries::adapter_folder()?;
    let path = prepend(&folder, env::var_os("LD_LIBRARY_PATH"));
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", path);
    command.env(outboard_nic::FILES_VARIABLE, &folder);
    command.envs(preloading(
        folder.join(outboard_nic::PRELOADED.0),
        program.as_ref(),
    ));
    if let Some(fabric) = fabric {
        let fabric = std::path::absolute(&fabric).context("naming the folder of --fabric")?;
        let is_other = fabric.exists() && !fabric.is_dir();
        anyhow::ensure!(
            !is_other,
            "--fabric {}: that is no folder; adapters meet in a folder, which is made if it is not there",
            fabric.display()
        );
        command.env(outboard_nic::fabric::VARIABLE, fabric);
    }
    // From here on the process is the program: signals, terminal and exit code are its own.
    stack::restore();
    let error = command.exec();
    Ok(not_started(&command, &error))
}
