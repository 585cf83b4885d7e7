// A launch as modules and graphs share it.
#pragma once
#include "sim.h"

struct KernelLaunch {
    void* function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
};
// Checks a launch and copies its parameters; the op or node, its name and the kernel it must find loaded.
sim::Code prepare_launch(const KernelLaunch&, std::function<sim::Code()>& run, std::string& name, sim::Kernel*& kernel);
