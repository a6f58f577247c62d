// The tone of each state: green only for what a real token came back from.

export const toneOfReplica = {
  creating: "warn", loading: "warn", active: "good", draining: "idle", failed: "bad",
};

export const toneOfKey = { active: "good", expired: "warn", revoked: "bad" };

/** A deployment's state in a word, with its tone. */
export function deploymentState(deployment) {
  if (deployment.replicas === 0) return ["stopped", "idle"];
  if (deployment.ready) return ["ready", "good"];
  return deployment.ready_replicas > 0 ? ["degraded", "warn"] : ["not ready", "bad"];
}
