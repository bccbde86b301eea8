package sitetest

import ()

const (
	OwnRegistry = "seeding: {mode: registry, agents: boot}\n"
	Harbor      = `seeding:
  mode: external
  external:
    address: harbor.lan
    rewrites: [{registry: docker.io, match: '^(.*)$', replace: plant/$1}]
    pull: {username: robot$pull, password: the-password}
`
	Peers  = "seeding: {peerToPeer: true}\n"
	OwnLAN = `registries:
  mirrors:
    registry.lan: {}
    docker.io: {endpoint: ["https://cache.lan:5000"]}
  configs:
    cache.lan:5000: {auth: {username: u, password: p}}
    other.lan:5000: {auth: {username: u, password: p}}
`
)
