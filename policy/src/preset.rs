//! Presets: three settings in one step (contract P9).

use crate::{ApprovalPolicy, Mode, SessionEvent};

/// A named pair of mode and approval policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    name: &'static str,
    mode: Mode,
    approval: ApprovalPolicy,
}

/// A preset that can't be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresetError {
    /// No preset has this name.
    #[error("unknown preset `{0}` (expected workspace-write or danger-full-access)")]
    Unknown(String),
    /// `custom` is what a state is called that matches no preset.
    #[error("`custom` is not a preset; it names a state that matches none")]
    Custom,
    /// Nothing here can confine.
    #[error("preset `{0}` needs a launcher that confines")]
    NoLauncher(&'static str),
    /// Nobody here can approve.
    #[error("preset `{0}` needs an approver")]
    NoApprover(&'static str),
}

/// What a deployment has. A preset needs both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// A launcher that confines.
    pub confines: bool,
    /// An approver.
    pub approves: bool,
}

impl Preset {
    /// Every shipped preset.
    pub const SHIPPED: [Self; 2] = [
        Self { name: "workspace-write", mode: Mode::WorkspaceWrite, approval: ApprovalPolicy::Ask },
        Self {
            name: "danger-full-access",
            mode: Mode::DangerFullAccess,
            approval: ApprovalPolicy::Never,
        },
    ];

    /// What a state is called that matches no preset.
    pub const CUSTOM: &'static str = "custom";

    /// Returns the preset of this name.
    ///
    /// # Errors
    /// There is none, or the name is `custom`.
    pub fn find(name: &str) -> Result<Self, PresetError> {
        if name == Self::CUSTOM {
            return Err(PresetError::Custom);
        }
        Self::SHIPPED
            .into_iter()
            .find(|preset| preset.name == name)
            .ok_or_else(|| PresetError::Unknown(name.to_owned()))
    }

    /// Returns the name of the preset that this state is, or `custom`.
    #[must_use]
    pub fn name_of(mode: Mode, approval: ApprovalPolicy) -> &'static str {
        Self::SHIPPED
            .iter()
            .find(|preset| preset.mode == mode && preset.approval == approval)
            .map_or(Self::CUSTOM, |preset| preset.name)
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the mode.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the approval policy.
    #[must_use]
    pub const fn approval(&self) -> ApprovalPolicy {
        self.approval
    }

    /// Returns the three events that choose the preset. They are stored in one transaction; the fold drops a switch of
    /// which only a part is there.
    ///
    /// # Errors
    /// The deployment lacks what a preset needs.
    pub fn events(&self, deployment: Deployment) -> Result<[SessionEvent; 3], PresetError> {
        if !deployment.confines {
            return Err(PresetError::NoLauncher(self.name));
        }
        if !deployment.approves {
            return Err(PresetError::NoApprover(self.name));
        }
        Ok([
            SessionEvent::Preset { preset: self.name.to_owned() },
            SessionEvent::Mode { mode: self.mode, preset: Some(self.name.to_owned()) },
            SessionEvent::Approval { policy: self.approval, preset: Some(self.name.to_owned()) },
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_found_by_name_and_by_state() {
        for preset in Preset::SHIPPED {
            assert_eq!(Preset::find(preset.name()), Ok(preset));
            assert_eq!(Preset::name_of(preset.mode(), preset.approval()), preset.name());
        }
        assert_eq!(Preset::name_of(Mode::ReadOnly, ApprovalPolicy::Ask), "custom");
        assert_eq!(Preset::name_of(Mode::DangerFullAccess, ApprovalPolicy::Ask), "custom");
        assert_eq!(Preset::find("custom"), Err(PresetError::Custom));
        assert!(matches!(Preset::find("read-only"), Err(PresetError::Unknown(_))));
    }

    #[test]
    fn a_preset_needs_a_launcher_and_an_approver() {
        for (confines, approves) in [(true, true), (true, false), (false, true), (false, false)] {
            for preset in Preset::SHIPPED {
                let events = preset.events(Deployment { confines, approves });
                assert_eq!(events.is_ok(), confines && approves, "{confines} {approves}");
            }
        }
    }
}
