# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances on GPUs: which GPUs the machine has for them, where they are placed, and what their processes see.

machine.py         reads the GPUs of the machine, without a CUDA context
available.py       the GPUs that instances may use, at one moment
placement.py       the GPUs of a group that names none
visibility.py      the GPUs that the process of an instance sees
tensor_places.py   where the tensors of a model may lie on GPUs
"""
