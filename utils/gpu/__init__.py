# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs, behind one narrow interface: NVIDIA's driver, or a stand-in for tests on machines without a GPU.

    driver.py       the interface `Gpu`, the properties of a GPU, and the errors
    inventory.py    which GPUs there are; no context and no package of NVIDIA's is needed for that
    stand_in.py     GPUs that do not exist: their memory is main memory, and the driver's rules are enforced

Nothing here is imported before a server or a model needs a GPU.
"""
