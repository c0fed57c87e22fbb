//! From method names to what they do.

use super::Daemon;
use crate::control::method::LogSet;
use crate::control::protocol::{Failure, none, read};
use crate::control::server::Call;
use crate::serve::log;
use serde::Serialize;
use serde_json::{Value, json};

impl Daemon {
    /// Answers a call, now or, if it has to wait for volumes of others, once they are open.
    pub(super) fn answer(&mut self, call: Call) {
        let Call { method, params, reply } = call;
        let later = reply.clone();
        // Those that may take their time are answered by whoever has carried them out.
        let begun = match method.as_str() {
            "job_add" | "job_plan" => {
                let plans = method == "job_plan";
                read(params).and_then(|wanted| self.jobs.add(wanted, plans, &self.volumes, later))
            }
            "volume_snapshot" => {
                read(params).and_then(|wanted| self.volume_snapshot(wanted, later))
            }
            "volume_add" => read(params).and_then(|wanted| self.volume_add(wanted, later)),
            "volume_remove" => read(params).and_then(|wanted| self.volume_remove(wanted, later)),
            "subsystem_remove" => {
                read(params).and_then(|wanted| self.subsystem_remove(wanted, later))
            }
            _ => {
                // A client that has gone needs no answer.
                let _ = reply.send(self.call(&method, params));
                return;
            }
        };
        if let Err(failure) = begun {
            let _ = reply.send(Err(failure));
        }
    }

    /// Carries out a method of the control socket.
    fn call(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        match method {
            "volume_resize" => result(&self.volume_resize(read(params)?)?),
            "volume_list" => none(&params).and_then(|()| result(&self.volumes())),
            "volume_missing" => none(&params).and_then(|()| result(&self.missing())),
            "volume_paths" => result(&self.volume_paths(&read(params)?)?),
            "volume_maps" => result(&self.volume_maps(&read(params)?)?),
            "volume_program" => result(&self.volume_program(read(params)?)?),
            "volume_tune" => result(&self.volume_tune(read(params)?)?),
            "controller_list" => result(&self.controller_list(read(params)?)?),
            "subsystem_list" => none(&params).and_then(|()| result(&self.subsystem_list()?)),
            "host_list" => result(&self.host_list(&read(params)?)?),
            "listener_list" => none(&params).and_then(|()| result(&self.listener_list()?)),
            "ana_list" => result(&self.ana_list(&read(params)?)?),
            "host_allow" => nothing(self.host_allow(read(params)?)),
            "host_disallow" => nothing(self.host_disallow(read(params)?)),
            "host_set_key" => result(&self.host_set_key(read(params)?)?),
            "host_clear_key" => nothing(self.host_clear_key(read(params)?)),
            "listener_add" => result(&self.listener_add(read(params)?)?),
            "listener_remove" => result(&self.listener_remove(read(params)?)?),
            "ana_set" => nothing(self.ana_set(read(params)?)),
            "subsystem_add" => nothing(self.subsystem_add(read(params)?)),
            "subsystem_tune" => result(&self.subsystem_tune(read(params)?)?),
            "job_list" => none(&params).and_then(|()| result(&self.jobs.list())),
            "job_pause" => result(&self.jobs.pause(read(params)?)?),
            "job_resume" => {
                let wanted = read(params)?;
                result(&self.jobs.resume(wanted, &self.volumes)?)
            }
            "job_cancel" => result(&self.jobs.cancel(read(params)?)?),
            "job_throttle" => result(&self.jobs.throttle(read(params)?)?),
            "job_clear" => result(&self.jobs.clear(&read(params)?)?),
            "stats" => none(&params).and_then(|()| result(&self.statistics()?)),
            "log_set" => nothing(log_set(&read(params)?)),
            "config_get" => none(&params).and_then(|()| result(self.config())),
            other => Err(Failure::method(other)),
        }
    }
}

fn log_set(wanted: &LogSet) -> Result<(), Failure> {
    log::change(&wanted.filter).map_err(Failure::params)?;
    tracing::info!("logging {} from now on", wanted.filter);
    Ok(())
}

fn nothing(done: Result<(), Failure>) -> Result<Value, Failure> {
    done.map(|()| json!({}))
}

fn result<T: Serialize>(value: &T) -> Result<Value, Failure> {
    Ok(serde_json::to_value(value).expect("results are plain data"))
}
