package sitetest

import ()

const RemovingConfig = `cluster:
  master: {host: 127.0.0.1, port: 1, password: p}
  agents:
    - {host: 10.0.0.12, password: p}
ssh: {trustOnFirstUse: true}
network: {cni: cilium}
runtime: {removeAbsentAgents: true, sshTimeoutSeconds: 1}
`
