package setup

import ()

// ChangedMark stands for what an adopted k3s was started with, from when boxlift is about to change it until it is
// started. One that boxlift has not changed has nothing there: it runs with what it was found with.
const ChangedMark = "changed"
